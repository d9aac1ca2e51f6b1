// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run from its recipe to its summary: what `tandem run` and `tandem sft` call.

#include <cstdint>
#include <optional>
#include <string>

#include "tandem/runtime/recipe/config.h"
#include "tandem/runtime/session/evaluation.h"

namespace tandem::runtime {

struct RunRequest {
  RunConfig config;
  bool resume = false;
  std::string replay;          ///< train on the samples of this run folder instead of generating
  StopRequested stop;          ///< asked at token and stage boundaries; may be empty
};

struct RunSummary {
  std::optional<EvalSummary> before, after;
  int64_t steps = 0;           ///< optimizer steps of the whole run
  double seconds = 0;          ///< over all its parts, if it was resumed
  int64_t tokens = 0;          ///< prompt and response tokens trained on
};

/// Runs on `parallel.ranks` threads, or as one rank of an MPI job. Writes the run folder; prints a line per step and, at the
/// end, the table before/after with sample answers.
/// Errors: UserError before any work is lost; Interrupted after the state is saved; PeerError naming a rank.
RunSummary run_rl(const RunRequest& request);
RunSummary run_supervised(const RunRequest& request);

}  // namespace tandem::runtime
