// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks of one machine as neighbours, whatever the order in which a launcher dealt them to machines.

#include <string>
#include <vector>

namespace tandem::comm {

struct WorldOrder {
  std::vector<int> launched;  // by rank of the world: the launcher's number of it
  std::vector<int> machine;   // by rank of the world: the number of its machine
  int num_machines() const { return machine.empty() ? 0 : machine.back() + 1; }
};

/// first_of_machine: by the launcher's numbers, the lowest of those on the same machine. Machines follow each other by their first ranks,
/// ranks of a machine by their numbers; the launcher's rank 0 stays rank 0.
WorldOrder order_by_machine(const std::vector<int>& first_of_machine);

/// `ranks 0-1 on alpha, ranks 2-3 on beta (the launcher's 1, 3)`: names by rank of the world.
std::string to_text(const WorldOrder& order, const std::vector<std::string>& names);

}  // namespace tandem::comm
