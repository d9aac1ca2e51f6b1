// SPDX-License-Identifier: Apache-2.0
#pragma once
// One GRPO step of a whole run: generate, score, train.

#include <nlohmann/json_fwd.hpp>

#include "options.h"

namespace tandem::bench {

struct GrpoStepOptions : Computing {
  int64_t prompts = 16;     ///< per step
  int64_t gens = 8;         ///< responses per prompt
  int64_t prompt_len = 32;
  int64_t new_tokens = 64;  ///< of each response
  double beta = 0.0;        ///< KL coefficient
};
void describe(OptionVisitor& field, GrpoStepOptions& o);

/// The object of report.h. Errors: UserError for options; InternalError if the answer is wrong.
nlohmann::json grpo_step(const GrpoStepOptions& options);

}  // namespace tandem::bench
