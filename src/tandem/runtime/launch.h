// SPDX-License-Identifier: Apache-2.0
#pragma once
// One body on every rank of a run, as threads or as processes, each with its share of the cores.
//
//   started by a launcher (mpirun, srun)      processes, one of which is this one
//   ranks compute on devices                  processes of this machine, which the first one starts; where a library is the caller, which
//                                             cannot start itself again, threads on fake devices and an error on real ones
//   else                                      threads of this process

#include <functional>
#include <string>

#include "tandem/comm/group.h"
#include "tandem/config/config.h"

namespace tandem::runtime {

/// What the command line says beside the recipe.
struct HowStarted {
  bool resume, overwrite;
  std::string replay, replay_decisions;  ///< run folders, or ""
};

/// Who calls.
enum class Host {
  kProgram,  ///< the program, which may be started again with its own arguments
  kLibrary,  ///< code of another program, such as a session
};

/// Ranks that are processes read recipe, data and models for themselves. Compares digests of what they found: the resolved recipe and
/// `how`, the files of data, replayed samples and reward code, the files of each model. Of a file beyond 1 GiB it reads parts.
/// Collective; threads of one process have nothing to compare.
/// Errors: UserError naming the ranks that differ from rank 0, in which of these, and the options. The same on all ranks.
void check_same_start(const config::RunConfig& config, const HowStarted& how, comm::Group& world);

/// Errors: as comm/launch.h says of ranks of that kind; UserError if --ranks contradicts the launcher, or a library's ranks need processes.
void launch_ranks(const config::RunConfig& config, Host host, const std::function<void(comm::Group& world)>& body);

}  // namespace tandem::runtime
