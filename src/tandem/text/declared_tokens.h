// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens that the files beside a tokenizer declare, some of them beyond its own: tokenizer_config.json, added_tokens.json and
// special_tokens_map.json.

#include <nlohmann/json.hpp>
#include <string>

#include "tandem/text/pipeline/json_part.h"
#include "tandem/text/tokenizer.h"

namespace tandem::text {

/// The three files; {} for one that is not there.
struct DeclaredTokens {
  nlohmann::json config = nlohmann::json::object();        ///< tokenizer_config.json
  nlohmann::ordered_json config_in_order = config;         ///< the same: ids go by the order of its keys
  nlohmann::json added = nlohmann::json::object();         ///< added_tokens.json
  nlohmann::json special_map = nlohmann::json::object();   ///< special_tokens_map.json
};

/// Of an object as added tokens have it.
AddedToken read_added(const JsonPart& entry, int32_t id);

/// Adds to a spec, whose own tokens are read, what the files declare, as transformers 5 does. added_tokens_decoder of the config tells
/// ids and flags; without it, added_tokens.json tells ids, and special_tokens_map.json overrides the config. Special tokens that nobody
/// gave an id get the next one each: first the named ones (bos_token, ..., then others such as image_token), then the extra ones. Also
/// fills spec.eos and spec.bos.
/// Errors: UserError naming both files where a declared id belongs to another token, or is not the next one.
void add_declared_tokens(const DeclaredTokens& files, const std::string& directory, TokenizerSpec& spec);

}  // namespace tandem::text
