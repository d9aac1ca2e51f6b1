// SPDX-License-Identifier: Apache-2.0
#pragma once
// The file formats a tokenizer comes in, read into a TokenizerSpec; and a tiny tokenizer written as files.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/declared_tokens.h"
#include "tandem/text/tokenizer.h"

namespace tandem::text {

/// Qwen2's split pattern, used with vocab.json + merges.txt.
extern const std::string_view kQwen2Split;

/// Qwen2 form. Errors: UserError naming `where`.
TokenizerSpec qwen2_spec(const nlohmann::json& vocab, const std::vector<std::string>& merge_lines, const DeclaredTokens& declared,
                         const std::string& where);
/// The form of the `tokenizers` library. Errors: UserError naming `where` for every part that is not supported.
TokenizerSpec tokenizer_json_spec(const nlohmann::json& tokenizer, const DeclaredTokens& declared, const std::string& where);

/// Writes tokenizer.json and tokenizer_config.json of a tokenizer with one token per character of `alphabet` (ASCII). It has no
/// merges. Special tokens come first (ids 0, 1, ...). `<eos>` and `<pad>` take those roles when among them.
/// Errors: UserError for a character that is repeated or not ASCII, PeerError if the directory cannot be written.
void write_char_tokenizer(const std::string& directory, std::string_view alphabet, const std::vector<std::string>& special_tokens);

}  // namespace tandem::text
