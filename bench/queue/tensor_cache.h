// SPDX-License-Identifier: Apache-2.0
#pragma once
// A batch from one stage to the next, among ranks, with equal and unequal layouts.

#include <nlohmann/json_fwd.hpp>

#include "options.h"

namespace tandem::bench {

struct TensorCacheOptions : Common {
  int64_t samples = 1024;  ///< of the batch, over all ranks
  int64_t seq = 2048;      ///< tokens of a sample
  int64_t ranks = 0;       ///< as threads of this process, 0 is two; not under a launcher
  int64_t seed = 0;
};
void describe(OptionVisitor& field, TensorCacheOptions& o);

/// The object of report.h, null on ranks other than the first. Errors: UserError for options; InternalError if the answer is wrong.
nlohmann::json tensor_cache(const TensorCacheOptions& options);

}  // namespace tandem::bench
