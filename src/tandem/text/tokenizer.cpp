// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/tokenizer.h"

#include <algorithm>
#include <cstdio>

#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

enum : uint8_t { kGap, kPlainToken, kSpecialToken };

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size())
    out.append(text.substr(begin, at - begin)).append(to);
  return out.append(text.substr(begin));
}

std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens)
    if (token.normalized == normalized) out.push_back(token);
  return out;
}

// `<0x41>` of a SentencePiece vocabulary is the byte itself.
bool is_byte_token(const std::string& name, char& byte) {
  unsigned int code = 0;
  int end = 0;
  if (name.size() != 6 || std::sscanf(name.c_str(), "<0x%2X>%n", &code, &end) != 1 || end != 6) return false;
  byte = static_cast<char>(code);
  return true;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec, std::string where)
    : spec_(std::move(spec)), where_(std::move(where)), bpe_(std::move(spec_.bpe)),
      raw_tokens_(select(spec_.added, false)), normalized_tokens_(select(spec_.added, true)) {
  for (const std::string& pattern : spec_.splits) splits_.emplace_back(with_unicode_space(pattern), where_, Regex::Effort::kTrusted);
  fill_bytes();
  auto named = [&](const std::string& name) { return name.empty() ? std::nullopt : token_id(name); };
  eos_ = named(spec_.eos);
  bos_ = named(spec_.bos);
}

void Tokenizer::fill_bytes() {
  int32_t max_id = -1;
  for (const auto& [id, name] : spec_.names) max_id = std::max(max_id, id);
  for (const AddedToken& token : spec_.added) max_id = std::max(max_id, token.id);
  bytes_.resize(static_cast<size_t>(max_id) + 1);
  kind_.assign(bytes_.size(), kGap);
  auto bytes_of = [&](const std::string& name) {
    std::string bytes;
    char byte;
    if (spec_.space.empty()) return bytes_of_symbols(name, bytes) ? bytes : name;
    return is_byte_token(name, byte) ? std::string(1, byte) : replace_all(name, spec_.space, " ");
  };
  for (const auto& [id, name] : spec_.names) {
    bytes_[static_cast<size_t>(id)] = bytes_of(name);
    kind_[static_cast<size_t>(id)] = kPlainToken;
    ids_by_name_[name] = id;
  }
  for (const AddedToken& token : spec_.added) {
    bytes_[static_cast<size_t>(token.id)] = bytes_of(token.content);
    kind_[static_cast<size_t>(token.id)] = token.special ? kSpecialToken : kPlainToken;
    ids_by_name_[token.content] = token.id;
  }
  spec_.names.clear();
}

std::optional<int32_t> Tokenizer::token_id(std::string_view name) const {
  const auto found = ids_by_name_.find(name);
  return found == ids_by_name_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

const std::string& Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size() || kind_[static_cast<size_t>(id)] == kGap)
    throw UserError(where_, "there is no token with id " + std::to_string(id),
                    "expected ids of this tokenizer, 0 to " + std::to_string(vocab_size() - 1));
  return bytes_[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && kind_[static_cast<size_t>(id)] == kSpecialToken; }

std::vector<int32_t> Tokenizer::encode(std::string_view text, Special special) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repair_utf8(text);
  std::vector<int32_t> ids = spec_.prefix_ids;
  ids.reserve(ids.size() + text.size() / 3 + 1);
  for (const AddedPiece& piece : raw_tokens_.split(text, special == Special::kPlain)) {
    if (piece.id >= 0)
      ids.push_back(piece.id);
    else
      encode_stretch(piece.text, special, ids);
  }
  ids.insert(ids.end(), spec_.suffix_ids.begin(), spec_.suffix_ids.end());
  return ids;
}

void Tokenizer::encode_stretch(std::string_view text, Special special, std::vector<int32_t>& out) const {
  std::string normalized;
  if (spec_.nfc) text = normalized = nfc(text);
  if (!spec_.space.empty()) {
    std::string spaced = spec_.prepend + replace_all(text, " ", spec_.space);
    normalized = std::move(spaced);
    text = normalized;
  }
  for (const AddedPiece& piece : normalized_tokens_.split(text, special == Special::kPlain)) {
    if (piece.id >= 0)
      out.push_back(piece.id);
    else
      encode_pieces(piece.text, 0, out);
  }
}

void Tokenizer::encode_pieces(std::string_view text, size_t split, std::vector<int32_t>& out) const {
  if (split == splits_.size()) return bpe_.encode(text, out);
  size_t begin = 0;
  for (Regex::Scan scan(splits_[split], text); scan.next();) {
    const Span match = scan.group();
    if (match.begin > begin) encode_pieces(text.substr(begin, match.begin - begin), split + 1, out);
    if (match.end > match.begin) encode_pieces(text.substr(match.begin, match.end - match.begin), split + 1, out);
    begin = match.end;
  }
  if (begin < text.size()) encode_pieces(text.substr(begin), split + 1, out);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    const std::string& token = token_bytes(id);
    if (!(skip_special && is_special(id))) bytes += token;
  }
  if (strips_first_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
  return is_utf8(bytes) ? bytes : repair_utf8(bytes);
}

}  // namespace tandem::text
