// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/session/rank_launch.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/launch.h"
#include "tandem/device/process.h"

namespace tandem::runtime {

void launch_ranks(const RunConfig& config, const std::function<void(comm::Group&)>& body) {
  const bool processes = comm::mpi_launched();
  const int64_t ranks = config.parallel.ranks;
  if (processes && ranks > 1)
    throw UserError("--ranks", join_text(ranks, " ranks as threads inside ranks as processes"), "either --ranks or mpirun/srun");
  const int64_t cores = config.parallel.threads > 0 ? config.parallel.threads : device::num_cores();
  const auto run = [&](comm::Group& world) {
    // Threads of one process share its cores; processes of one machine are assumed to share the machine.
    device::set_compute_threads(static_cast<int>(std::max<int64_t>(1, cores / world.size())));
    if (world.rank() != 0) log::quiet(processes);
    body(world);
  };
  if (processes) comm::run_mpi(config.parallel.deadline_s, run);
  else comm::run_local(static_cast<int>(ranks), config.parallel.deadline_s, run);
}

}  // namespace tandem::runtime
