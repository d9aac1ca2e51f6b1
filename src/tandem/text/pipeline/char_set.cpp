// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

constexpr size_t kNumCategories = 30;

template <class Contains>
CharSet scan(Contains contains) {
  CharSet set;
  bool inside = false;
  char32_t first = 0;
  std::vector<CharSet::Range> ranges;
  for (char32_t c = 0; c <= CharSet::kLast + 1; ++c) {
    const bool in = c <= CharSet::kLast && contains(c);
    if (in && !inside) first = c;
    if (!in && inside) ranges.push_back({first, c - 1});
    inside = in;
  }
  for (const auto& [low, high] : ranges) set.add(CharSet(low, high));
  return set;
}

// One pass over all code points, on first use.
const std::array<std::vector<CharSet::Range>, kNumCategories>& ranges_by_category() {
  static const auto all = [] {
    std::array<std::vector<CharSet::Range>, kNumCategories> by_category;
    for (char32_t c = 0; c <= CharSet::kLast; ++c) {
      auto& ranges = by_category[static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(c)))];
      if (!ranges.empty() && ranges.back().second + 1 == c)
        ranges.back().second = c;
      else
        ranges.push_back({c, c});
    }
    return by_category;
  }();
  return all;
}

}  // namespace

CharSet& CharSet::add(const CharSet& other) {
  if (!ranges_.empty() && !other.ranges_.empty() && other.ranges_.front().first > ranges_.back().second + 1) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    return *this;
  }
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (!merged.empty() && range.first <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, range.second);
    else
      merged.push_back(range);
  }
  ranges_ = std::move(merged);
  return *this;
}

CharSet CharSet::complement() const {
  CharSet out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.push_back({next, first - 1});
    next = last + 1;
  }
  if (next <= kLast) out.ranges_.push_back({next, kLast});
  return out;
}

bool CharSet::contains(char32_t code_point) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](char32_t c, const Range& range) { return c < range.first; });
  return after != ranges_.begin() && code_point <= std::prev(after)->second;
}

std::optional<CharSet> CharSet::category(std::string_view name) {
  // In the order of utf8proc_category_t.
  static constexpr std::string_view kNames[kNumCategories] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                                              "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                                              "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  std::vector<Range> ranges;
  for (size_t i = 0; i < kNumCategories; ++i) {
    if (name.empty() || name.size() > 2 || !kNames[i].starts_with(name)) continue;
    const auto& more = ranges_by_category()[i];
    ranges.insert(ranges.end(), more.begin(), more.end());
  }
  if (ranges.empty()) return std::nullopt;
  CharSet set;
  set.ranges_ = std::move(ranges);
  set.add(CharSet());
  return set;
}

CharSet CharSet::space() {
  static const CharSet set = scan(is_space);
  return set;
}

CharSet CharSet::word() {
  static const CharSet set = scan(is_word_char);
  return set;
}

}  // namespace tandem::text
