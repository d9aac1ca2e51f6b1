// SPDX-License-Identifier: Apache-2.0
#pragma once
// What scheduling a step of generation costs the host: the scheduler alone, without a model.

#include <nlohmann/json_fwd.hpp>

#include "options.h"

namespace tandem::bench {

struct SchedulerOptions : Common {
  int64_t sequences = 128;   ///< that run at a time
  int64_t gens = 8;          ///< responses per prompt
  int64_t prompt_len = 128;
  int64_t new_tokens = 256;
  int64_t seed = 0;
};
void describe(OptionVisitor& field, SchedulerOptions& o);

/// The object of report.h. Errors: InternalError if a sequence gets too few tokens or a block is lost.
nlohmann::json scheduler(const SchedulerOptions& options);

}  // namespace tandem::bench
