// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/tokenizer.h"

#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

enum : uint8_t { kToken = 1, kSpecial = 2, kByte = 4 };

std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens)
    if (token.normalized == normalized) out.push_back(token);
  return out;
}

// What is looked for in normalised text is normalised, too, and decoded so, as in the `tokenizers` library.
std::vector<AddedToken> normalized_by(const Normalizer& normalizer, std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    std::string store;
    if (token.normalized) token.content = std::string(normalizer.apply(token.content, store));
  }
  return tokens;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec, std::string where)
    : spec_(std::move(spec)), where_(std::move(where)), bpe_(std::move(spec_.bpe)), normalizer_(std::move(spec_.normalizer)),
      pre_tokenizer_(std::move(spec_.pre_tokenizer)), raw_tokens_(select(spec_.added, false)),
      normalized_tokens_(normalized_by(normalizer_, select(spec_.added, true))) {
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
  if (!spec_.decoder.first_drops.empty()) first_bytes_.resize(bytes_.size());
  kind_.assign(bytes_.size(), 0);
  for (const auto& [id, name] : spec_.names) set_token(id, name, kToken);
  for (const AddedToken& token : normalized_by(normalizer_, spec_.added))
    set_token(token.id, token.content, token.special ? kToken | kSpecial : kToken);
  for (const AddedToken& token : spec_.added) ids_by_name_[token.content] = token.id;
  spec_.names.clear();
}

void Tokenizer::set_token(int32_t id, const std::string& name, uint8_t kind) {
  const auto at = static_cast<size_t>(id);
  TokenPart part = part_of(name, spec_.decoder);
  bytes_[at] = std::move(part.text);
  kind_[at] = part.is_byte ? kind | kByte : kind;
  ids_by_name_[name] = id;
  if (first_bytes_.empty()) return;
  std::string shorter = name;
  const std::string& dropped = spec_.decoder.first_drops;
  for (size_t found; (found = shorter.find(dropped)) != std::string::npos;) shorter.erase(found, dropped.size());
  first_bytes_[at] = part_of(shorter, spec_.decoder).text;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view name) const {
  const auto found = ids_by_name_.find(name);
  return found == ids_by_name_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

const std::string& Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size() || kind_[static_cast<size_t>(id)] == 0)
    throw UserError(where_, "there is no token with id " + std::to_string(id),
                    "expected ids of this tokenizer, 0 to " + std::to_string(vocab_size() - 1));
  return bytes_[static_cast<size_t>(id)];
}

const std::string& Tokenizer::first_token_bytes(int32_t id) const {
  const std::string& bytes = token_bytes(id);
  return first_bytes_.empty() ? bytes : first_bytes_[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && kind_[static_cast<size_t>(id)] & kSpecial; }

bool Tokenizer::is_byte(int32_t id) const { return id >= 0 && id < vocab_size() && kind_[static_cast<size_t>(id)] & kByte; }

std::vector<int32_t> Tokenizer::encode(std::string_view text, Special special) const {
  std::vector<int32_t> ids = spec_.prefix_ids;
  encode_text(text, true, special, ids);
  ids.insert(ids.end(), spec_.suffix_ids.begin(), spec_.suffix_ids.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode_part(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_text(text, false, Special::kRecognise, ids);
  return ids;
}

void Tokenizer::encode_text(std::string_view text, bool first, Special special, std::vector<int32_t>& out) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repair_utf8(text);
  out.reserve(out.size() + text.size() / 3 + 1);
  for (const AddedPiece& piece : raw_tokens_.split(text, special == Special::kPlain)) {
    if (piece.id >= 0)
      out.push_back(piece.id);
    else
      encode_stretch(piece.text, first && piece.text.data() == text.data(), special, out);
  }
}

void Tokenizer::encode_stretch(std::string_view text, bool first, Special special, std::vector<int32_t>& out) const {
  std::string store;
  text = normalizer_.apply(text, store);
  if (normalized_tokens_.empty()) return encode_pieces(text, first, out);
  for (const AddedPiece& piece : normalized_tokens_.split(text, special == Special::kPlain)) {
    if (piece.id >= 0)
      out.push_back(piece.id);
    else
      encode_pieces(piece.text, first && piece.text.data() == text.data(), out);
  }
}

void Tokenizer::encode_pieces(std::string_view text, bool first, std::vector<int32_t>& out) const {
  pre_tokenizer_.split(text, first, [&](std::string_view piece) { bpe_.encode(piece, out); });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  TextJoiner joiner(spec_.decoder);
  std::string out, run;
  bool first = true;
  // A run of bytes that is ill-formed anywhere is lost as a whole, as in the `tokenizers` library.
  auto end_run = [&] {
    for (size_t i = 0; i < run.size() && !is_utf8(run); ++i) run[i] = '\xFF';
    joiner.add(run, true, out);
    run.clear();
  };
  for (int32_t id : ids) {
    const std::string& bytes = first ? first_token_bytes(id) : token_bytes(id);
    if (skip_special && is_special(id)) continue;
    first = false;
    if (is_byte(id)) {
      run += bytes;
      continue;
    }
    end_run();
    joiner.add(bytes, false, out);
  }
  end_run();
  joiner.finish(out);
  return out;
}

}  // namespace tandem::text
