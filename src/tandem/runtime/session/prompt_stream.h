// SPDX-License-Identifier: Apache-2.0
#pragma once
// The endless stream of training prompts, tokenized: group number g is the prompt at position g of the shuffled epochs.

#include <memory>
#include <optional>

#include "tandem/data/source.h"
#include "tandem/text/tokenizer.h"

namespace tandem::runtime {

/// Ownership  uses the tokenizer.
/// Threads    one.
/// Errors     UserError for a prompt without a token.
class PromptStream {
 public:
  PromptStream(const data::Options& options, data::Split split, const text::Tokenizer& tokenizer);

  /// The prompt of a position, in training order.
  data::Prompt at_position(int64_t position) const { return at_row(order_.row(position)); }
  data::Prompt at_row(int64_t row) const;
  int64_t size() const { return source_->size(); }
  /// Tokens of the longest prompt; looks at every row the first time.
  int64_t longest_prompt() const;
  /// Errors: UserError naming the row and the option if a prompt and `new_tokens` more do not fit into `context` tokens.
  void require_context(int64_t new_tokens, const char* option, int64_t context) const;
  double epochs(int64_t position) const { return static_cast<double>(position) / static_cast<double>(size()); }

 private:
  void require_token(const std::vector<int32_t>& ids, int64_t row) const;

  const text::Tokenizer& tokenizer_;
  std::unique_ptr<data::PromptSource> source_;
  data::DataOrder order_;
  mutable int64_t longest_prompt_ = 0, longest_row_ = 0;
};

}  // namespace tandem::runtime
