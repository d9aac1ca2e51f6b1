// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a version of the weights costs a run whose workers pull it: on its machine, and by sockets, where readers pass it on.

#include <nlohmann/json_fwd.hpp>

#include "options.h"

namespace tandem::bench {

struct WeightsPullOptions : WithModel {
  int64_t workers = 8;  ///< threads, each with a layout of one rank
};
void describe(OptionVisitor& field, WeightsPullOptions& o);

/// The object of report.h. Errors: UserError for a model; InternalError if a reader has other weights than were published.
nlohmann::json weights_pull(const WeightsPullOptions& options);

}  // namespace tandem::bench
