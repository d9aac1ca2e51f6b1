// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who this process is in its job, and where the ranks meet, as the launcher's environment says it.

#include <cstdint>
#include <functional>
#include <string>

namespace tandem::comm {

struct Rendezvous {
  int rank = 0, size = 1;
  int local_rank = 0;        // among the ranks of this machine: the number of its device
  std::string host;          // of rank 0
  uint16_t port = 0;
};

/// The value of a variable; null without one.
using Variable = std::function<const char*(const char* name)>;

/// Reads RANK, WORLD_SIZE and LOCAL_RANK, else what mpirun or srun set. Rank 0 is at MASTER_ADDR, else on the first machine
/// of srun's list, else here if all ranks are. MASTER_PORT is 29500 by default.
/// Errors  UserError naming the variable that is missing or wrong.
Rendezvous rendezvous(const Variable& variable);

}  // namespace tandem::comm
