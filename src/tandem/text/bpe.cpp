// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>

#include "tandem/base/check.h"
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

Bpe::Bpe(Spec spec) : spec_(std::move(spec)), byte_ids_(256, -1) {
  int32_t max_id = -1;
  for (const auto& [bytes, id] : spec_.vocab) max_id = std::max(max_id, id);
  is_whole_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(max_id) + 1);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    const auto found = spec_.vocab.find(spec_.by_character ? std::string(name) : std::string(1, static_cast<char>(byte)));
    if (found != spec_.vocab.end()) byte_ids_[static_cast<size_t>(byte)] = found->second;
  }
  size_t capacity = 64;
  while (capacity < spec_.merges.size() * 2) capacity *= 2;
  pair_keys_.assign(capacity, 0);
  pairs_.resize(capacity);
  auto id_of = [&](const std::string& bytes, size_t rank) {
    const auto found = spec_.vocab.find(bytes);
    if (found == spec_.vocab.end())
      throw UserError(
          spec_.where,
          "merge " + std::to_string(rank + 1) + " needs the token " + printable(bytes) + ", which the vocabulary lacks",
          "expected a vocabulary and merges of one tokenizer");
    return found->second;
  };
  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const Merge& merge = spec_.merges[rank];
    insert_pair(id_of(merge.left, rank), id_of(merge.right, rank), {static_cast<uint32_t>(rank), id_of(merge.left + merge.right, rank)});
  }
  spec_.merges = {};
}

void Bpe::insert_pair(int32_t left, int32_t right, Pair pair) {
  const uint64_t key = pair_key(left, right);
  size_t slot = mix(key) & (pair_keys_.size() - 1);
  while (pair_keys_[slot] != 0 && pair_keys_[slot] != key) slot = (slot + 1) & (pair_keys_.size() - 1);
  if (pair_keys_[slot] == key) return;  // the first of two equal merges counts
  pair_keys_[slot] = key;
  pairs_[slot] = pair;
}

Bpe::Pair Bpe::find_pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t slot = mix(key) & (pair_keys_.size() - 1);; slot = (slot + 1) & (pair_keys_.size() - 1)) {
    if (pair_keys_[slot] == key) return pairs_[slot];
    if (pair_keys_[slot] == 0) return {kNoRank, -1};
  }
}

void Bpe::first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  symbols.reserve(piece.size());
  for (size_t at = 0; at < piece.size();) {
    size_t length = 1;
    if (spec_.by_character) {
      length = utf8_step(piece.substr(at, 4)).length;
      const auto found = spec_.vocab.find(std::string(piece.substr(at, length)));
      if (found != spec_.vocab.end()) {
        symbols.push_back(found->second);
        at += length;
        continue;
      }
    }
    for (size_t i = at; i < at + length; ++i) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(piece[i])];
      if (id < 0)
        throw UserError(spec_.where,
                        "no token can express " + printable(piece.substr(at, length)) + " in " + printable(piece.substr(0, 40)),
                        "expected a text within the tokenizer's alphabet");
      symbols.push_back(id);
    }
    at += length;
  }
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  Pair pairs[kShortPiece];
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find_pair(symbols[i], symbols[i + 1]);
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
    if (best + 1 < count) pairs[best] = find_pair(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = find_pair(symbols[best - 1], symbols[best]);
  }
  symbols.resize(count);
}

// A linked list of symbols and a queue of candidate pairs; a candidate whose symbols have changed meanwhile is stale.
void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank;
    int32_t at, merged;
    int32_t left, right;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> next(symbols.size()), previous(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : -1;
    previous[i] = i - 1;
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto consider = [&](int32_t at) {
    if (at < 0 || next[at] < 0) return;
    const Pair pair = find_pair(symbols[at], symbols[next[at]]);
    if (pair.rank != kNoRank) queue.push({pair.rank, at, pair.merged, symbols[at], symbols[next[at]]});
  };
  for (int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const int32_t right = symbols[top.at] == top.left ? next[top.at] : -1;
    if (right < 0 || symbols[right] != top.right) continue;
    symbols[top.at] = top.merged;
    symbols[right] = -1;
    next[top.at] = next[right];
    if (next[right] >= 0) previous[next[right]] = top.at;
    consider(previous[top.at]);
    consider(top.at);
  }
  std::erase(symbols, -1);
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  const auto whole = spec_.vocab.find(std::string(piece));
  std::atomic<uint8_t>* flag = whole == spec_.vocab.end() ? nullptr : &is_whole_[static_cast<size_t>(whole->second)];
  if (flag && (spec_.whole_piece_first || flag->load(std::memory_order_relaxed) == 1)) {
    out.push_back(whole->second);
    return;
  }
  std::vector<int32_t> symbols;
  first_symbols(piece, symbols);
  if (symbols.size() <= kShortPiece)
    merge_short(symbols);
  else
    merge_long(symbols);
  if (flag) flag->store(symbols.size() == 1 ? 1 : 2, std::memory_order_relaxed);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void Bpe::encode_by_queue(std::string_view piece, std::vector<int32_t>& out) const {
  std::vector<int32_t> symbols;
  first_symbols(piece, symbols);
  merge_long(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace tandem::text
