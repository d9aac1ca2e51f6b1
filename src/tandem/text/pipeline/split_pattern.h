// SPDX-License-Identifier: Apache-2.0
#pragma once
// The patterns of tokenizer.json. PCRE2 matches them, and the `tokenizers` library takes Oniguruma, whose \s, \w, \v, `$` and brackets
// within brackets mean something else: compile() says the former by sets that both know, and refuses what they read differently.

#include <string>

#include "tandem/text/regex.h"

namespace tandem::text {

/// What to look for: a text, or a regular expression.
struct TextPattern {
  std::string text;
  bool regex = false;
  std::string where;  ///< named in errors
};

/// Known are literals, `.`, classes, `\s \d \w \p{..}` and their opposites, groups, `(?i:..)`, alternatives, greedy and lazy repetition,
/// lookaheads, `$` and `\z`. Errors: UserError naming `where` and the construct that is malformed or not known; one for a pattern that
/// matches the empty text or is too large.
Regex compile(const TextPattern& pattern);

}  // namespace tandem::text
