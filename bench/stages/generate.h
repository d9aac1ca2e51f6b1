// SPDX-License-Identifier: Apache-2.0
#pragma once
// Generation alone, with responses of one length or of many.

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "options.h"

namespace tandem::bench {

struct GenerateOptions : Computing {
  std::string mode = "fixed";        ///< fixed or ragged
  int64_t batch = 32;                ///< sequences that run at a time
  int64_t prompts = 0;               ///< 0 is one batch in fixed mode, one for each length in ragged mode
  int64_t prompt_len = 32;
  int64_t new_tokens = 0;            ///< of each in fixed mode, 0 is 64; of each at most in ragged mode, 0 is no bound
  int64_t kv_block_tokens = 0, kv_cache_mib = 4096;  ///< as rollout.engine
  bool graphs = true;
  std::vector<std::string> shapes;   ///< SEQUENCESxPROMPT, in place of `batch` and `prompt_len`: each is measured, by one process
  std::vector<int64_t> lengths;      ///< of responses in ragged mode; not described: they come in a file
};
void describe(OptionVisitor& field, GenerateOptions& o);

/// The object of report.h; with shapes each figure is named after its own, such as `64x2048 ms_per_step`. Errors: UserError for options,
/// those that the mode would not read among them; InternalError if the answer is wrong.
nlohmann::json generate(const GenerateOptions& options);

}  // namespace tandem::bench
