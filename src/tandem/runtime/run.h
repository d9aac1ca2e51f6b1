// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run from its recipe to its summary: what `tandem run` and `tandem sft` call.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/base/error.h"
#include "tandem/runtime/folder/run_folder.h"
#include "tandem/runtime/launch.h"
#include "tandem/runtime/stage/stages.h"

namespace tandem::runtime {

struct RunRequest {
  config::RunConfig config;
  bool resume = false;
  bool overwrite = false;      ///< puts aside what an earlier run left in the run folder; not beside `resume`
  std::string replay;          ///< train on the samples of this run folder instead of generating
  std::string replay_decisions;  ///< decide as the free run of this folder did
  StopRequested stop;          ///< asked at token and stage boundaries; may be empty
  Hooks hooks;                 ///< of run_rl
  Host host = Host::kLibrary;  ///< whether its ranks may be processes that start this program again
  std::string about_correction = {};  ///< a line for the run's log, once it has one
  /// Of run_rl: fit/fit.h decides sizes, but of these options, which the user has set; without a value nothing is probed. A resume takes
  /// what the earlier start decided.
  std::optional<std::vector<std::string>> fit_but;
};

/// Runs on `parallel.ranks` ranks (launch.h says as what), or as one rank of a launcher's job. Writes the run folder; prints a line per
/// step and, at the end, the table before/after with sample answers.
/// Errors: UserError before any work is lost; Interrupted after the state is saved; PeerError naming a rank.
RunSummary run_rl(const RunRequest& request);
RunSummary run_supervised(const RunRequest& request);

}  // namespace tandem::runtime
