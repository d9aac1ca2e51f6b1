// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sample queue between processes: one that decides, one that generates, one that trains, and many that only ask.

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "options.h"

namespace tandem::bench {

struct QueueOptions : Common {
  int64_t samples = 1024;  ///< of a batch, in groups of 8
  int64_t seq = 2048;      ///< tokens of a sample
  int64_t chunk = 64;      ///< samples of a smaller batch
  int64_t clients = 64;    ///< that are connected where calls are timed
  int64_t seed = 0;
  std::vector<int64_t> lengths;  ///< of the ragged samples, one after the other; empty: an eighth of seq to all of it
};
void describe(OptionVisitor& field, QueueOptions& o);

/// The object of report.h. Errors: UserError for options; InternalError if the answer is wrong.
nlohmann::json queue(const QueueOptions& options);

}  // namespace tandem::bench
