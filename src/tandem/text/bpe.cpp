// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>

#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

constexpr size_t kShortPiece = 40;  // below it, looking through all pairs beats a queue

bool is_own_symbol(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

uint64_t pair_key(int32_t left, int32_t right) { return ((static_cast<uint64_t>(left) + 1) << 32) | static_cast<uint32_t>(right); }

uint64_t mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15ull;
  return x ^ (x >> 29);
}

std::string printable(std::string_view bytes) {
  if (is_utf8(bytes)) return "`" + std::string(bytes) + "`";
  std::string out;
  for (unsigned char c : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", c);
    out += hex;
  }
  return out;
}

// Places where a pair may be merged: lowest rank first, the leftmost of equals. A rank is one kind of pair. Its places mostly come
// from left to right, and wait in a plain list. Those out of order wait in a heap beside it.
class CandidateQueue {
 public:
  struct Kind {
    int32_t left, right, merged;
  };

  void push(const Kind& kind, uint32_t rank, int32_t at) {
    if (!last_ || last_rank_ != rank) {
      last_ = &rows_[rank];
      last_rank_ = rank;
      last_->kind = kind;
    }
    if (last_->empty()) ranks_.push(rank);
    if (last_->in_order.empty() || last_->in_order.back() <= at)
      last_->in_order.push_back(at);
    else
      last_->others.push(at);
  }

  // The first candidate's place and kind, which is valid until the next call; nullptr if there is none.
  const Kind* pop(int32_t& at) {
    if (ranks_.empty()) return nullptr;
    const uint32_t rank = ranks_.top();
    if (!popped_ || popped_rank_ != rank) {
      popped_ = &rows_[rank];
      popped_rank_ = rank;
    }
    at = popped_->take();
    if (popped_->empty()) ranks_.pop();
    return &popped_->kind;
  }

 private:
  using Least = std::greater<>;
  struct Row {
    Kind kind;
    std::vector<int32_t> in_order;
    size_t taken = 0;
    std::priority_queue<int32_t, std::vector<int32_t>, Least> others;

    bool empty() const { return taken == in_order.size() && others.empty(); }
    int32_t take() {
      if (!others.empty() && (taken == in_order.size() || others.top() < in_order[taken])) {
        const int32_t at = others.top();
        others.pop();
        return at;
      }
      const int32_t at = in_order[taken++];
      if (taken == in_order.size()) {
        in_order.clear();
        taken = 0;
      }
      return at;
    }
  };
  std::unordered_map<uint32_t, Row> rows_;  // its elements stay where they are
  std::priority_queue<uint32_t, std::vector<uint32_t>, Least> ranks_;  // of the rows that are not empty
  Row* last_ = nullptr;
  Row* popped_ = nullptr;
  uint32_t last_rank_ = 0, popped_rank_ = 0;
};

constexpr std::string_view kSpaceMark = "\u2581";  // SentencePiece's space

// Whether a mark stands behind another character.
bool mark_within(std::string_view text) {
  for (size_t at = text.find(kSpaceMark, 1); at != std::string_view::npos; at = text.find(kSpaceMark, at + 1))
    if (!text.substr(0, at).ends_with(kSpaceMark)) return true;
  return false;
}

}  // namespace

const std::vector<std::string>& byte_symbols() {
  static const std::vector<std::string> symbols = [] {
    std::vector<std::string> all(256);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte)
      append_utf8(all[static_cast<size_t>(byte)], is_own_symbol(byte) ? static_cast<char32_t>(byte) : next++);
    return all;
  }();
  return symbols;
}

bool bytes_of_symbols(std::string_view symbols, std::string& bytes) {
  static const std::unordered_map<char32_t, char> inverse = [] {
    std::unordered_map<char32_t, char> map;
    for (int byte = 0; byte < 256; ++byte) map[utf8_step(byte_symbols()[static_cast<size_t>(byte)]).code_point] = static_cast<char>(byte);
    return map;
  }();
  bytes.clear();
  for (size_t at = 0; at < symbols.size();) {
    const Utf8Step step = utf8_step(symbols.substr(at, 4));
    const auto found = inverse.find(step.code_point);
    if (found == inverse.end()) return false;
    bytes += found->second;
    at += step.length;
  }
  return true;
}

Bpe::Bpe(Spec spec) : spec_(std::move(spec)), byte_ids_(256, -1), words_(std::make_unique<WordCache>()) {
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    if (!spec_.by_character)
      byte_ids_[static_cast<size_t>(byte)] = id_of(std::string(1, static_cast<char>(byte)));
    else if (spec_.byte_fallback)
      byte_ids_[static_cast<size_t>(byte)] = id_of(name);
  }
  if (!spec_.unk.empty()) unk_id_ = id_of(spec_.unk);
  if (spec_.by_character)
    for (const auto& [name, id] : spec_.vocab) {
      const Utf8Step step = utf8_step(name);
      if (step.valid && step.length == name.size()) character_ids_[step.code_point] = id;
    }
  cuts_at_mark_ = spec_.by_character && !spec_.whole_piece_first && character_id(kSpaceMark) >= 0 &&
                  std::none_of(spec_.merges.begin(), spec_.merges.end(),
                               [](const Merge& merge) { return mark_within(merge.left + merge.right); });
  fill_pairs();
}

int32_t Bpe::id_of(const std::string& token) const {
  const auto found = spec_.vocab.find(token);
  return found == spec_.vocab.end() ? -1 : found->second;
}

void Bpe::fill_pairs() {
  size_t capacity = 64;
  while (capacity < spec_.merges.size() * 2) capacity *= 2;
  pairs_.resize(capacity);
  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const Merge& merge = spec_.merges[rank];
    const int32_t left = id_of(merge.left), right = id_of(merge.right), merged = id_of(merge.left + merge.right);
    if (left < 0 || right < 0 || merged < 0)
      throw UserError(spec_.where,
                      "merge " + std::to_string(rank + 1) + " needs the token " +
                          printable(left < 0 ? merge.left : right < 0 ? merge.right : merge.left + merge.right) +
                          ", which the vocabulary lacks",
                      "expected a vocabulary and merges of one tokenizer");
    const uint64_t key = pair_key(left, right);
    size_t slot = mix(key) & (capacity - 1);
    while (pairs_[slot].key != 0 && pairs_[slot].key != key) slot = (slot + 1) & (capacity - 1);
    pairs_[slot] = {key, static_cast<uint32_t>(rank), merged};  // the last of two equal merges counts
  }
  spec_.merges = {};
}

const Bpe::Pair& Bpe::find_pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t slot = mix(key) & (pairs_.size() - 1);; slot = (slot + 1) & (pairs_.size() - 1))
    if (pairs_[slot].key == key || pairs_[slot].key == 0) return pairs_[slot];
}

int32_t Bpe::character_id(std::string_view character) const {
  if (!spec_.by_character) return byte_ids_[static_cast<uint8_t>(character[0])];
  const auto found = character_ids_.find(utf8_step(character).code_point);
  return found == character_ids_.end() ? -1 : found->second;
}

// What a person can type of a small alphabet, for an error; nothing of a large one.
std::string Bpe::alphabet() const {
  constexpr size_t kMostListed = 64;
  std::string all;
  for (char c = ' '; c <= '~'; ++c)
    if (character_id(std::string_view(&c, 1)) >= 0) all += c;
  return all.empty() || all.size() > kMostListed ? "" : ", " + printable(all);
}

// All bytes of the character, or none.
bool Bpe::byte_symbols_of(std::string_view character, std::vector<int32_t>& symbols) const {
  if (!spec_.byte_fallback) return false;
  auto id = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char byte) { return id(byte) < 0; })) return false;
  for (char byte : character) symbols.push_back(id(byte));
  return true;
}

// An unknown token waits for the next known character, as bytes do not end it: the reference library does the same.
void Bpe::first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  symbols.reserve(piece.size());
  bool waiting = false;
  auto flush = [&] {
    if (waiting) symbols.push_back(unk_id_);
    waiting = false;
  };
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, spec_.by_character ? utf8_step(piece.substr(at, 4)).length : 1);
    at += character.size();
    if (const int32_t id = character_id(character); id >= 0) {
      flush();
      symbols.push_back(id);
    } else if (spec_.by_character && byte_symbols_of(character, symbols)) {
      continue;
    } else if (unk_id_ >= 0) {
      if (!spec_.fuse_unk) flush();
      waiting = true;
    } else {
      throw UserError(spec_.where, "no token can express " + printable(character) + " in " + printable(piece.substr(0, 40)),
                      "expected a text within the tokenizer's alphabet" + alphabet());
    }
  }
  flush();
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  struct Next {
    uint32_t rank;
    int32_t merged;
  } pairs[kShortPiece];
  auto pair_at = [&](size_t i) {
    const Pair& pair = find_pair(symbols[i], symbols[i + 1]);
    return Next{pair.rank, pair.merged};
  };
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = pair_at(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best + 1 < count) pairs[best] = pair_at(best);
    if (best > 0) pairs[best - 1] = pair_at(best - 1);
  }
  symbols.resize(count);
}

// A linked list of symbols and a queue of candidate pairs; a candidate whose symbols have changed meanwhile is stale.
void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> next(symbols.size()), previous(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : -1;
    previous[i] = i - 1;
  }
  CandidateQueue queue;
  auto consider = [&](int32_t at) {
    if (at < 0 || next[at] < 0) return;
    const Pair& pair = find_pair(symbols[at], symbols[next[at]]);
    if (pair.rank != kNoRank) queue.push({symbols[at], symbols[next[at]], pair.merged}, pair.rank, at);
  };
  for (int32_t i = 0; i + 1 < count; ++i) consider(i);
  for (int32_t at; const CandidateQueue::Kind* kind = queue.pop(at);) {
    const int32_t right = symbols[at] == kind->left ? next[at] : -1;
    if (right < 0 || symbols[right] != kind->right) continue;
    symbols[at] = kind->merged;
    symbols[right] = -1;
    next[at] = next[right];
    if (next[right] >= 0) previous[next[right]] = at;
    consider(previous[at]);
    consider(at);
  }
  std::erase(symbols, -1);
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (!cuts_at_mark_) return encode_whole(piece, out);
  size_t begin = 0;
  for (size_t at = piece.find(kSpaceMark); at != std::string_view::npos; at = piece.find(kSpaceMark, at + kSpaceMark.size())) {
    if (at == begin || piece.substr(begin, at - begin).ends_with(kSpaceMark)) continue;
    encode_whole(piece.substr(begin, at - begin), out);
    begin = at;
  }
  encode_whole(piece.substr(begin), out);
}

void Bpe::encode_whole(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  const bool is_short = piece.size() <= WordCache::kMostBytes;
  const uint64_t hash = is_short ? WordCache::hash_of(piece) : 0;
  const WordCache::Word* known = is_short ? words_->find(piece, hash) : nullptr;
  if (known && known->num_ids == 1) return out.push_back(known->ids[0]);
  if (known) {
    out.insert(out.end(), known->ids.begin(), known->ids.begin() + known->num_ids);
    return;
  }
  std::vector<int32_t> symbols;
  if (const int32_t whole = spec_.whole_piece_first ? id_of(std::string(piece)) : -1; whole >= 0) {
    symbols = {whole};
  } else {
    first_symbols(piece, symbols);
    if (symbols.size() <= kShortPiece)
      merge_short(symbols);
    else
      merge_long(symbols);
  }
  if (is_short) words_->keep(piece, hash, symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace tandem::text
