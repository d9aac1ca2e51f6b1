// SPDX-License-Identifier: Apache-2.0
#pragma once
// One training step on packed sequences.

#include <nlohmann/json_fwd.hpp>

#include <vector>

#include "options.h"

namespace tandem::bench {

struct TrainStepOptions : Computing {
  int64_t prompt_len = 32;
  std::vector<int64_t> lengths;    ///< of responses; not described: they come in a file
  int64_t micro_batch_tokens = 0;  ///< 0 takes the default of train.micro_batch_tokens
  std::string train_layout;        ///< ranks as threads of this process, which share the compute threads
  std::string recompute = "none";  ///< as train.recompute
  bool swap_optimizer = false;     ///< as train.swap_optimizer
};
void describe(OptionVisitor& field, TrainStepOptions& o);

/// The object of report.h. Errors: UserError for options; InternalError if the answer is wrong.
nlohmann::json train_step(const TrainStepOptions& options);

}  // namespace tandem::bench
