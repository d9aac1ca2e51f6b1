// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a reward model is, whoever runs it: its directory, the tokens it reads, the products it computes with.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/model/config.h"
#include "tandem/model/kernel/kernels.h"
#include "tandem/reward/rule.h"
#include "tandem/text/chat.h"
#include "tandem/text/tokenizer.h"

namespace tandem::serve {

/// Errors: UserError for a directory that is missing, no reward model, of several labels or without a tokenizer.
model::ModelConfig reward_model_config(const std::string& dir);

/// Of fixed libraries, so that a score does not depend on when the program started.
model::kernel::Kernels reward_products(const reward::Options& options, at::Device device);

/// Prompt and response as a reward model reads them.
///
/// Threads    const calls from any number.
class ScoredText {
 public:
  /// The config must outlive it.
  ScoredText(std::string dir, const model::ModelConfig& config);

  /// Up to the token whose score counts: the last one that is no padding, as transformers has it. A text longer than the context keeps its
  /// end, with a warning.
  /// Errors: UserError for messages that the chat template refuses, a text without a token, ids beyond the vocabulary.
  std::vector<int32_t> tokens(const reward::Answer& answer) const;

 private:
  std::vector<int32_t> whole(const reward::Answer& answer) const;

  std::string dir_;
  const model::ModelConfig& config_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> chat_;
  mutable std::atomic<int64_t> num_cut_ = 0;
};

}  // namespace tandem::serve
