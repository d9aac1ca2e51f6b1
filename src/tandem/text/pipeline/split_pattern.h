// SPDX-License-Identifier: Apache-2.0
#pragma once
// The regular expressions of tokenizer.json as trees. The parser knows literals, `.`, classes, `\s \d \w \p{..}` and their
// opposites. It knows groups, `(?i:..)`, alternatives, greedy and lazy repetition, a lookahead at one character, `$` and `\z`.

#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/pipeline/char_set.h"

namespace tandem::text {

struct PatternNode {
  enum class Kind {
    kChars,         ///< one character of `set`
    kSequence,      ///< `parts` one after the other; matches nothing at all if there are none
    kAlternatives,  ///< the first of `parts` that lets the rest match
    kRepeat,        ///< parts[0], `min` to `max` times
    kLook,          ///< nothing, where the next character is in `set`, or the text ends and `at_end`
  };
  static constexpr int kNoMax = -1;

  Kind kind = Kind::kSequence;
  CharSet set;
  std::vector<PatternNode> parts;
  int min = 0, max = kNoMax;
  bool lazy = false;    ///< as few times as possible
  bool at_end = false;
};

/// Errors: UserError naming `where` and the construct that is malformed or not known.
PatternNode parse_pattern(std::string_view pattern, const std::string& where);
/// A text that stands for itself.
PatternNode literal_pattern(std::string_view text);

}  // namespace tandem::text
