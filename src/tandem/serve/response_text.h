// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text at the end of generation: stop texts while it runs, and the text of a finished response.

#include <string>
#include <vector>

#include "tandem/model/config.h"
#include "tandem/rollout/request.h"
#include "tandem/text/tokenizer.h"

namespace tandem::serve {

/// A factory of matchers for `stops`; empty if there is no stop text. Errors: UserError if there is no tokenizer to read by.
rollout::StopMatcherFactory stop_matchers(const text::Tokenizer* tokenizer, std::vector<std::string> stops);

/// Fills the text of each sample, and of a greedy answer, without special tokens and cut before the first stop text. Ids above the
/// tokenizer's are left out.
void fill_text(data::Group& group, const text::Tokenizer& tokenizer, const std::vector<std::string>& stops);

/// The texts that end a response: those asked for, and the model's where there is a tokenizer to read by, unless its ends are ignored.
std::vector<std::string> stop_texts(std::vector<std::string> asked, const rollout::Sampling& sampling, const model::ModelConfig& model,
                                    const text::Tokenizer* tokenizer);

/// The ids that end a response: the model's, and the tokenizer's end of text.
std::vector<int32_t> stop_ids(const std::vector<int32_t>& model_eos, const text::Tokenizer* tokenizer);

}  // namespace tandem::serve
