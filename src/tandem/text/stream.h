// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decoding while tokens arrive: the streaming detokenizer and the search for stop texts.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/tokenizer.h"

namespace tandem::text {

/// Gives out complete characters only; a character cut by a token boundary waits for the rest of its bytes. The parts joined are
/// the text of Tokenizer::decode. Ill-formed runs of `<0x41>` tokens differ: it gives out what is whole before it knows the end.
/// Ownership  uses the tokenizer, which must outlive it.
/// Threads    one sequence, one thread.
/// Errors     UserError for an id that is no token.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), joiner_(tokenizer.decoder()), skip_special_(skip_special) {}

  /// Text that became complete with this token; "" if nothing did.
  std::string push(int32_t id);
  /// What is left when no more tokens come: U+FFFD for a character without its end.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  TextJoiner joiner_;
  bool skip_special_;
  bool at_start_ = true;
};

/// Looks for stop texts in a text that arrives in parts. The stop whose end comes first wins, the longest of those that end
/// together. So the result does not depend on how the text is cut.
/// Threads  one sequence, one thread.
class StopMatcher {
 public:
  /// Empty stop texts are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Found {
    size_t cut;   ///< bytes of the whole text before the stop text
    size_t end;   ///< bytes up to and including it
    size_t stop;  ///< which of the stops
  };
  /// Takes the next part of the text. Once found, later calls return the same.
  std::optional<Found> feed(std::string_view text);
  bool empty() const { return longest_ == 0; }

 private:
  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string tail_;        // the last bytes of the text, fewer than the longest stop
  size_t total_bytes_ = 0;
  std::optional<Found> found_;
};

}  // namespace tandem::text
