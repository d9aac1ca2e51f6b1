// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/launch.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/device/process.h"

namespace tandem::runtime {
namespace {

// Ranks that may run on the same cores share them: the threads of one process, and processes that nobody bound to cores of
// their own. A number asked for counts per process. Collective.
int64_t threads_of_rank(int64_t asked, bool processes, comm::Group& world) {
  if (!processes) return std::max<int64_t>(1, (asked > 0 ? asked : device::num_cores()) / world.size());
  if (asked > 0) return asked;
  const std::string mine = device::cores_name();
  return std::max<int64_t>(1, device::num_cores() / std::ranges::count(comm::texts_of_all(world, mine), mine));
}

}  // namespace

void launch_ranks(const config::RunConfig& config, const std::function<void(comm::Group&)>& body) {
  const bool processes = comm::mpi_launched();
  const int64_t ranks = config.parallel.ranks;
  if (processes && ranks > 1)
    throw UserError("--ranks", join_text(ranks, " ranks as threads inside ranks as processes"), "either --ranks or mpirun/srun");
  const auto run = [&](comm::Group& world) {
    device::set_compute_threads(static_cast<int>(threads_of_rank(config.parallel.threads, processes, world)));
    if (world.rank() != 0) log::quiet(processes);
    body(world);
  };
  if (processes) comm::run_mpi(config.parallel.deadline_s, run);
  else comm::run_local(static_cast<int>(ranks), config.parallel.deadline_s, run);
}

}  // namespace tandem::runtime
