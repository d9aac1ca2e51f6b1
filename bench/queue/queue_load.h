// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a batch costs the store that has it: fetched by each rank of a replica, or by one that hands on; padded, or end to end.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "options.h"

namespace tandem::bench {

struct QueueLoadOptions : Common {
  std::string layout = "tp8,pp16";  ///< of the replica, whose ranks are threads
  int64_t samples = 64;
  int64_t seq = 256;                ///< tokens of a sample, where there are no lengths
  std::vector<int64_t> lengths;     ///< of the samples, one after the other
};
void describe(OptionVisitor& field, QueueLoadOptions& o);

/// The object of report.h. Errors: UserError for a layout; InternalError if a rank has other rows than were made.
nlohmann::json queue_load(const QueueLoadOptions& options);

}  // namespace tandem::bench
