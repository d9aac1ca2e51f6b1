// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/added_token.h"

#include <algorithm>

#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

size_t char_start_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word_char(utf8_step(text.substr(char_start_before(text, begin), 4)).code_point)) return true;
  return end < text.size() && is_word_char(utf8_step(text.substr(end, 4)).code_point);
}

size_t grow_left(std::string_view text, size_t begin, size_t limit) {
  if (begin < limit) return limit;
  while (begin > limit) {
    const size_t before = char_start_before(text, begin);
    if (!is_space(utf8_step(text.substr(before, 4)).code_point)) break;
    begin = before;
  }
  return std::max(begin, limit);
}

size_t grow_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Step step = utf8_step(text.substr(end, 4));
    if (!step.valid || !is_space(step.code_point)) break;
    end += step.length;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : by_first_byte_(256, {0, 0}) {
  for (const AddedToken& token : tokens)
    if (!token.content.empty()) tokens_.push_back(token);
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    auto& range = by_first_byte_[static_cast<uint8_t>(tokens_[i].content[0])];
    if (range.second == 0) range.first = i;
    range.second = i + 1;
  }
}

// Binary search narrows the candidates byte by byte. So a text of `<<<<` costs no more a byte than the longest token.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  auto [low, high] = by_first_byte_[static_cast<uint8_t>(text[at])];
  const AddedToken* best = nullptr;
  for (size_t depth = 1; low < high; ++depth) {
    if (tokens_[low].content.size() == depth) {
      best = &tokens_[low];
      while (low < high && tokens_[low].content.size() == depth) ++low;
    }
    if (at + depth >= text.size()) break;
    const auto wanted = static_cast<uint8_t>(text[at + depth]);
    auto byte_of = [&](const AddedToken& t) { return static_cast<uint8_t>(t.content[depth]); };
    const auto begin = tokens_.begin() + static_cast<ptrdiff_t>(low), end = tokens_.begin() + static_cast<ptrdiff_t>(high);
    const auto first = std::partition_point(begin, end, [&](const AddedToken& t) { return byte_of(t) < wanted; });
    const auto last = std::partition_point(first, end, [&](const AddedToken& t) { return byte_of(t) == wanted; });
    low = static_cast<size_t>(first - tokens_.begin());
    high = static_cast<size_t>(last - tokens_.begin());
  }
  return best;
}

std::vector<AddedPiece> AddedTokenFinder::split(std::string_view text, bool plain) const {
  std::vector<AddedPiece> pieces;
  size_t begin = 0;  // of the stretch not yet given out
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const auto& range = by_first_byte_[static_cast<uint8_t>(text[at])];
    const AddedToken* token = range.first < range.second ? longest_at(text, at) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    const size_t end = at + token->content.size();
    const bool passed_over = (plain && token->special) || (token->single_word && touches_word(text, at, end));
    if (!passed_over) {
      const size_t left = token->lstrip ? grow_left(text, at, begin) : at;
      if (left > begin) pieces.push_back({text.substr(begin, left - begin), -1});
      // Within white space taken along before, growing again ends at the same place.
      begin = !token->rstrip ? end : end < begin ? begin : grow_right(text, end);
      pieces.push_back({text.substr(left, std::max(begin, left) - left), token->id});
    }
    at = end;
  }
  if (begin < text.size()) pieces.push_back({text.substr(begin), -1});
  return pieces;
}

}  // namespace tandem::text
