// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text to token ids and back, as the model's own tokenizer does it: read from a Hugging Face directory.
//
//   added tokens cut out -> normalizer -> pre-tokenizer -> byte pair encoding of each piece

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
#include "tandem/text/pipeline/decoder.h"
#include "tandem/text/pipeline/normalizer.h"
#include "tandem/text/pipeline/pre_tokenizer.h"

namespace tandem::text {

enum class Special {
  kRecognise,  ///< special tokens written in the text become their ids
  kPlain,      ///< they are text like any other (text of users, who must not forge a turn)
};

/// What a tokenizer's files say, whatever their form. Filled by the readers of tokenizer_files.h.
struct TokenizerSpec {
  Bpe::Spec bpe;
  std::map<int32_t, std::string> names;         ///< id -> token as written in the vocabulary (byte alphabet)
  std::vector<AddedToken> added;
  std::vector<NormalizeStep> normalizer;
  std::vector<PreTokenizeStep> pre_tokenizer;
  DecodeSpec decoder;
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
  /// A text that stands behind others: nothing is put around it.
  std::vector<int32_t> encode_part(std::string_view text) const;
  /// Ill-formed bytes become U+FFFD, one per maximal ill-formed part. Where bytes are the exception (`<0x41>`), a run of them that is
  /// ill-formed anywhere becomes one per byte.
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
  /// True if the token is a byte by name, `<0x41>`, in a vocabulary of characters.
  bool is_byte(int32_t id) const;
  const DecodeSpec& decoder() const { return spec_.decoder; }
  /// The bytes of a token that begins a text.
  const std::string& first_token_bytes(int32_t id) const;

 private:
  void encode_text(std::string_view text, bool first, Special special, std::vector<int32_t>& out) const;
  void encode_stretch(std::string_view text, bool first, Special special, std::vector<int32_t>& out) const;
  void encode_pieces(std::string_view text, bool first, std::vector<int32_t>& out) const;
  void fill_bytes();
  void set_token(int32_t id, const std::string& name, uint8_t kind);

  TokenizerSpec spec_;
  std::string where_;
  Bpe bpe_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  std::vector<std::string> bytes_;        // of each id
  std::vector<std::string> first_bytes_;  // of each id at the beginning of a text; empty if they are the same
  std::vector<uint8_t> kind_;             // of each id: flags, 0 for no token
  std::map<std::string, int32_t, std::less<>> ids_by_name_;
  std::optional<int32_t> eos_, bos_;
};

}  // namespace tandem::text
