// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens added beside the vocabulary: they are cut out of a text before anything else looks at it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      ///< left out of decoded text on request, and not recognised in plain text
  bool normalized = false;   ///< looked for in the normalised text rather than the raw one
  bool lstrip = false;       ///< takes the white space on its left along
  bool rstrip = false;
  bool single_word = false;  ///< only where no word character touches it
};

/// A stretch of text: an added token (id >= 0) or what lies between two of them (id = -1).
struct AddedPiece {
  std::string_view text;
  int32_t id;
};

/// Finds added tokens: leftmost first, the longest of those that start together. It passes one over for a word beside it, or
/// because the text is plain. That one hides the others within it all the same, as in the `tokenizers` library.
/// Threads  const members from any thread.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);
  /// Pieces are views of `text`. With `plain`, special tokens are not recognised.
  std::vector<AddedPiece> split(std::string_view text, bool plain) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;             // sorted by content
  std::vector<std::pair<size_t, size_t>> by_first_byte_;  // range of tokens_ for each first byte
};

}  // namespace tandem::text
