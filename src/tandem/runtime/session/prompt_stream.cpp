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
  require_token(prompt.ids, row);
  return prompt;
}

void PromptStream::require_token(const std::vector<int32_t>& ids, int64_t row) const {
  if (ids.empty()) throw UserError(join_text(source_->name(), " row ", row), "the prompt has no token", "a prompt with some text");
}

int64_t PromptStream::longest_prompt() const {
  if (longest_prompt_ > 0) return longest_prompt_;
  for (int64_t row = 0; row < size(); ++row) {
    const std::vector<int32_t> ids = tokenizer_.encode(source_->at(row).text);
    require_token(ids, row);
    if (std::ssize(ids) > longest_prompt_) longest_prompt_ = std::ssize(ids), longest_row_ = row;
  }
  return longest_prompt_;
}

void PromptStream::require_context(int64_t new_tokens, const char* option, int64_t context) const {
  if (longest_prompt() + new_tokens <= context) return;
  throw UserError(join_text(source_->name(), " row ", longest_row_),
                  join_text("a prompt of ", longest_prompt_, " tokens and ", new_tokens, " new ones (", option, ")"),
                  join_text("at most the model's context of ", context, ": a smaller ", option, " or shorter prompts"));
}

}  // namespace tandem::runtime
