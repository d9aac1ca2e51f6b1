// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pattern as a deterministic automaton: one table look-up a character, nothing to backtrack. Of the matches that start at one
// place it finds the one a backtracking engine would. Alternatives go in order, repetitions are as greedy as they are written.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/pipeline/split_pattern.h"
#include "tandem/text/unicode.h"

namespace tandem::text {

/// Threads  const members from any thread.
/// Errors   UserError naming `where` for a pattern that matches the empty text or whose automaton would be too large.
class SplitAutomaton {
 public:
  static constexpr size_t kNoMatch = SIZE_MAX;
  SplitAutomaton(const PatternNode& pattern, const std::string& where);

  /// End of the match that starts at byte `at` of a UTF-8 text; kNoMatch if none does.
  size_t match_at(std::string_view text, size_t at) const;
  /// Calls found(begin, end) for every match from left to right.
  template <class Found>
  void each_match(std::string_view text, Found found) const {
    for (size_t at = 0; at < text.size();) {
      const size_t end = match_at(text, at);
      if (end != kNoMatch) found(at, end);
      at = end != kNoMatch ? end : at + (static_cast<uint8_t>(text[at]) < 128 ? 1 : utf8_step(text.substr(at, 4)).length);
    }
  }

 private:
  friend class AutomatonBuilder;
  uint8_t class_at(std::string_view text, size_t at, size_t& length) const;

  std::array<uint8_t, 128> ascii_classes_{};
  std::vector<uint16_t> blocks_;       // of 256 code points: where their classes begin in classes_, in units of 256
  std::vector<uint8_t> classes_;
  size_t num_classes_ = 0;             // the last one is the end of the text
  // [state][class]: next state * 2, +1 if a match ends before this character. State 0 is a dead end, 1 the start.
  std::vector<uint16_t> table_;
};

}  // namespace tandem::text
