// SPDX-License-Identifier: Apache-2.0
#pragma once
// What staleness gains: steps of whole runs whose responses have a long tail of lengths, with rollout ahead of training and without.

#include <nlohmann/json_fwd.hpp>

#include "options.h"

namespace tandem::bench {

struct StaleOptions : Computing {
  std::string placement = "split";
  int64_t staleness = 1;
  int64_t prompts = 4;    ///< per step
  int64_t gens = 8;       ///< responses per prompt
  int64_t prompt_len = 32;
  int64_t steps = 8;      ///< measured ones
  int64_t ranks = 2;      ///< threads
  std::string train_layout, rollout_layout;  ///< "": data-parallel
  std::vector<int64_t> lengths;  ///< sample i of the run has lengths[i modulo their number] tokens
};
void describe(OptionVisitor& field, StaleOptions& o);

/// The object of report.h. Its rows are of the run under the staleness, and `sync_step_s` of one without. `allowed_ratio` is what the
/// stages' times permit: a step without staleness over the most that any rank works in a step with it. `predicted_step_s` is of the same
/// run under a virtual clock (planner/simulate.h), from what its stages and its token steps took. Errors: UserError for options;
/// InternalError if a sample lags too far or has another length.
nlohmann::json stale(const StaleOptions& options);

}  // namespace tandem::bench
