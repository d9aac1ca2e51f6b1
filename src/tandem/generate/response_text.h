// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a response ends, and its text.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tandem/model/config.h"
#include "tandem/rollout/request.h"
#include "tandem/text/tokenizer.h"

namespace tandem::generate {

/// The texts that end a response: those asked for, and the model's where there is a tokenizer to read by, unless its ends are ignored.
std::vector<std::string> stop_texts(std::vector<std::string> asked, const rollout::Sampling& sampling, const model::ModelConfig& model,
                                    const text::Tokenizer* tokenizer);

/// The ids that end a response: the model's, and the tokenizer's end of text.
std::vector<int32_t> stop_ids(const std::vector<int32_t>& model_eos, const text::Tokenizer* tokenizer);

/// Ownership  uses the tokenizer.
/// Threads    any; each of its listeners is of one.
/// Errors     UserError for a text that ends responses where there is no tokenizer to read by.
class ResponseEnds {
 public:
  ResponseEnds() = default;
  /// `tokenizer`: null where there are ids alone, and no text. `asked`: texts, beside the model's own.
  ResponseEnds(std::vector<std::string> asked, const rollout::Sampling& sampling, const model::ModelConfig& model,
               const text::Tokenizer* tokenizer);

  const std::vector<int32_t>& ids() const { return ids_; }
  /// Empty if no text ends a response.
  const rollout::MakeTokenListener& listeners() const { return listeners_; }
  /// Without special tokens, and cut before the first stop text. Ids above the tokenizer's are left out.
  std::string text_of(std::span<const int32_t> ids) const;
  /// Fills the text of each sample, and of a greedy answer. Where an environment spoke, only the last turn is cut.
  void fill_text(data::Group& group) const;
  /// Null where there is none.
  const text::Tokenizer* tokenizer() const { return tokenizer_; }
  /// Of the tokenizer that the model has, too.
  int64_t num_ids() const { return num_ids_; }

 private:
  const text::Tokenizer* tokenizer_ = nullptr;
  int64_t num_ids_ = 0;
  std::vector<int32_t> ids_;
  std::vector<std::string> texts_;
  rollout::MakeTokenListener listeners_;
};

}  // namespace tandem::generate
