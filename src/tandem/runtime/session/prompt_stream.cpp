// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/session/prompt_stream.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::runtime {

PromptStream::PromptStream(const data::Options& options, data::Split split, const text::Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      source_(data::open_source(options, split)),
      order_(static_cast<uint64_t>(options.seed), source_->size(), options.shuffle) {}

data::Prompt PromptStream::at_row(int64_t row) const {
  data::Prompt prompt = source_->at(row);
  prompt.ids = tokenizer_.encode(prompt.text);
  if (prompt.ids.empty()) throw UserError(join_text(source_->name(), " row ", row), "the prompt has no token", "a text");
  return prompt;
}

int64_t PromptStream::longest_prompt() const {
  if (longest_prompt_ > 0) return longest_prompt_;
  for (int64_t row = 0; row < size(); ++row) {
    const auto tokens = static_cast<int64_t>(tokenizer_.encode(source_->at(row).text).size());
    if (tokens > longest_prompt_) longest_prompt_ = tokens, longest_row_ = row;
  }
  return longest_prompt_;
}

void PromptStream::require_context(int64_t new_tokens, int64_t context) const {
  if (longest_prompt() + new_tokens <= context) return;
  throw UserError(join_text(source_->name(), " row ", longest_row_), join_text("a prompt of ", longest_prompt_, " tokens and ", new_tokens, " new ones"),
                  join_text("at most the model's context of ", context, "; fewer max_new_tokens or a filter"));
}

}  // namespace tandem::runtime
