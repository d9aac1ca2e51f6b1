// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a model from one layout to another, among ranks.

#include <nlohmann/json_fwd.hpp>

#include "options.h"

namespace tandem::bench {

struct SwitchOptions : WithModel {
  std::string from, to;     ///< layouts of training and of rollout
  int64_t ranks = 0;        ///< as threads of this process, 0 is two; not under a launcher
  int64_t bucket_mib = 64;  ///< as parallel.reshard_bucket_mib
};
void describe(OptionVisitor& field, SwitchOptions& o);

/// The object of report.h, null on ranks other than the first. Errors: UserError for options; InternalError if the answer is wrong.
nlohmann::json switch_weights(const SwitchOptions& options);

}  // namespace tandem::bench
