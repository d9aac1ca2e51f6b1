// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte pair encoding of one piece of text: the pair of lowest rank is merged first, the leftmost of equals.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem::text {

/// GPT-2's alphabet: every byte as a printable character. Returns the UTF-8 text of each byte.
const std::vector<std::string>& byte_symbols();
/// The bytes that a text over that alphabet stands for; false if it holds another character.
bool bytes_of_symbols(std::string_view symbols, std::string& bytes);

/// Ownership  keeps its own copy of everything.
/// Threads    encode may run in any number of threads at once.
/// Errors     UserError if a merge names an unknown token, or a piece holds a byte that no token can express.
class Bpe {
 public:
  struct Merge {
    std::string left, right;
  };
  struct Spec {
    std::unordered_map<std::string, int32_t> vocab;  ///< token bytes -> id
    std::vector<Merge> merges;                       ///< in order of rank, token bytes
    bool by_character = false;                       ///< pieces start as characters (bytes `<0xNN>` where unknown), not as bytes
    bool whole_piece_first = false;                  ///< a piece that is a token stays whole (`ignore_merges`)
    std::string where;                               ///< named in errors
  };
  explicit Bpe(Spec spec);

  void encode(std::string_view piece, std::vector<int32_t>& out) const;
  /// Same result, always by the queue that long pieces use; for tests.
  void encode_by_queue(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  struct Pair {
    uint32_t rank;
    int32_t merged;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;
  Pair find_pair(int32_t left, int32_t right) const;
  void insert_pair(int32_t left, int32_t right, Pair pair);
  void first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  Spec spec_;
  std::vector<int32_t> byte_ids_;       // id of each byte's token, -1 if none
  std::vector<uint64_t> pair_keys_;     // open addressing; 0 = free
  std::vector<Pair> pairs_;
  // Whether a token's own text encodes to itself: 0 unknown, 1 yes, 2 no. Most words of a text are one token, so this is
  // the word cache: filled on first use, one byte a token, no lock.
  std::unique_ptr<std::atomic<uint8_t>[]> is_whole_;
};

}  // namespace tandem::text
