// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the first rank of a worker tells the others, so that all do the same.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/queue/client.h"

namespace tandem::worker {

struct Orders {
  bool ends = false;
  std::string welcome;                   ///< of a run that it joined: a new generator; "": go on
  data::PolicyVersion newest{};          ///< of the weights, as far as it knows
  std::vector<queue::Task> tasks;        ///< to admit
  std::vector<data::GroupId> cancelled;
  std::vector<data::GroupId> reported;   ///< whose tokens so far are wanted
  static void each(auto& m, auto&& field) {
    field(m.ends), field(m.welcome), field(m.newest), field(m.tasks), field(m.cancelled), field(m.reported);
  }
};

/// Those of the first rank, on all. Collective.
Orders orders_of_first(comm::Group& world, Orders mine);

}  // namespace tandem::worker
