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

}  // namespace tandem::runtime
