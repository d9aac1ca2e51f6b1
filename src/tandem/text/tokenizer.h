// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text to token ids and back, as the model's own tokenizer does it: read from a Hugging Face directory.
//
//   added tokens cut out -> normaliser (NFC) -> split pattern -> byte pair encoding of each piece

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/added_token.h"
#include "tandem/text/bpe.h"
#include "tandem/text/regex.h"

namespace tandem::text {

enum class Special {
  kRecognise,  ///< special tokens written in the text become their ids
  kPlain,      ///< they are text like any other (text of users, who must not forge a turn)
};

/// What a tokenizer's files say, whatever their form. Filled by the readers in tokenizer_files.cpp.
struct TokenizerSpec {
  Bpe::Spec bpe;
  std::map<int32_t, std::string> names;         ///< id -> token as written in the vocabulary (byte alphabet)
  std::vector<AddedToken> added;
  bool nfc = false;
  std::vector<std::string> splits;              ///< patterns applied one after the other; matches and gaps are pieces
  std::string prepend;                          ///< SentencePiece form: put before every stretch of text ...
  std::string space;                            ///< ... and what a space becomes; empty in the byte-level form
  std::vector<int32_t> prefix_ids, suffix_ids;  ///< put around every encoded text, such as a BOS
  std::string eos, bos;                         ///< names; empty if none
};

/// Ownership  keeps everything it needs; the files may go.
/// Threads    all members are const and may be called from any number of threads at once.
/// Errors     UserError for a missing or malformed file (named), for an unsupported pipeline, for a token id out of range.
/// Read next  bpe.h (merging), stream.h (one token at a time).
class Tokenizer {
 public:
  /// Reads `tokenizer.json`, or else `vocab.json` + `merges.txt` + `tokenizer_config.json` as Qwen2.
  static Tokenizer load(const std::string& directory);
  /// True if the directory holds the files of a tokenizer.
  static bool present_in(const std::string& directory);
  /// `where` is named in errors.
  Tokenizer(TokenizerSpec spec, std::string where);

  std::vector<int32_t> encode(std::string_view text, Special special = Special::kRecognise) const;
  /// Ill-formed bytes become U+FFFD, one per maximal ill-formed part.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  /// Largest id + 1. A model's vocabulary may be larger (padding).
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }
  /// By name: an added token's text, or a vocabulary entry as written in the file.
  std::optional<int32_t> token_id(std::string_view name) const;
  std::optional<int32_t> eos_id() const { return eos_; }
  std::optional<int32_t> bos_id() const { return bos_; }
  bool is_special(int32_t id) const;

  /// The bytes one token adds to a text; may be part of a character. Errors: UserError if there is no such token.
  const std::string& token_bytes(int32_t id) const;
  /// SentencePiece form: the space put before a text is taken off again when decoding.
  bool strips_first_space() const { return !spec_.prepend.empty(); }

 private:
  void encode_stretch(std::string_view text, Special special, std::vector<int32_t>& out) const;
  void encode_pieces(std::string_view text, size_t split, std::vector<int32_t>& out) const;
  void fill_bytes();

  TokenizerSpec spec_;
  std::string where_;
  Bpe bpe_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  std::vector<Regex> splits_;
  std::vector<std::string> bytes_;   // of each id
  std::vector<uint8_t> kind_;        // of each id: kGap, kPlainToken, kSpecialToken
  std::map<std::string, int32_t, std::less<>> ids_by_name_;
  std::optional<int32_t> eos_, bos_;
};

}  // namespace tandem::text
