// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte pair encoding of one piece of text: the pair of lowest rank is merged first, the leftmost of equals.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tandem/text/pipeline/word_cache.h"

namespace tandem::text {

/// GPT-2's alphabet: every byte as a printable character. Returns the UTF-8 text of each byte.
const std::vector<std::string>& byte_symbols();
/// The bytes that a text over that alphabet stands for; false if it holds another character.
bool bytes_of_symbols(std::string_view symbols, std::string& bytes);

/// Ownership  keeps its own copy of everything.
/// Threads    encode may run in any number of threads at once.
/// Errors     UserError if a merge names an unknown token, or a piece holds something that no token can express.
class Bpe {
 public:
  struct Merge {
    std::string left, right;
  };
  struct Spec {
    std::unordered_map<std::string, int32_t> vocab;  ///< token bytes -> id; by characters: names -> id
    std::vector<Merge> merges;                       ///< in order of rank, as in `vocab`
    bool by_character = false;                       ///< pieces start as characters, not as bytes
    bool byte_fallback = false;                      ///< a character that is no token becomes bytes, `<0xNN>` each
    std::string unk;                                 ///< the token for all else; "" for none
    bool fuse_unk = false;                           ///< neighbouring unknown characters are one token
    bool whole_piece_first = false;                  ///< a piece that is a token stays whole (`ignore_merges`)
    std::string where;                               ///< named in errors
  };
  explicit Bpe(Spec spec);

  void encode(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  struct Pair {
    uint64_t key = 0;  // of the two ids; 0 = free
    uint32_t rank = UINT32_MAX;
    int32_t merged = -1;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;
  int32_t id_of(const std::string& token) const;
  void fill_pairs();
  const Pair& find_pair(int32_t left, int32_t right) const;
  void encode_whole(std::string_view piece, std::vector<int32_t>& out) const;
  void first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  bool byte_symbols_of(std::string_view character, std::vector<int32_t>& symbols) const;
  int32_t character_id(std::string_view character) const;
  std::string alphabet() const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  Spec spec_;
  std::vector<int32_t> byte_ids_;  // of each byte's token, -1 if none
  std::unordered_map<char32_t, int32_t> character_ids_;
  int32_t unk_id_ = -1;
  bool cuts_at_mark_ = false;      // no token goes across the place before a U+2581 that follows another character
  std::vector<Pair> pairs_;        // open addressing; a power of two
  std::unique_ptr<WordCache> words_;
};

}  // namespace tandem::text
