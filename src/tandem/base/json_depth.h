// SPDX-License-Identifier: Apache-2.0
#pragma once
// How deep JSON of others may nest: copies and dumps of a parsed document recurse, and a line of brackets must not overflow the stack.

#include <string_view>

namespace tandem {

constexpr int kMaxJsonDepth = 500;

/// Whether objects and lists of `json` nest deeper than kMaxJsonDepth, as far as a parser would read it. Any bytes will do.
bool nests_too_deep(std::string_view json);

/// The document, of nlohmann's type `Json`; a discarded one where `text` is none, or nests too deep.
template <class Json>
Json parse_or_discard(std::string_view text) {
  return nests_too_deep(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
}

}  // namespace tandem
