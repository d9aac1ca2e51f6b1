// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

constexpr size_t kNumCategories = 30;

}  // namespace

void CharSet::append(char32_t c) {
  if (!ranges_.empty() && ranges_.back().second + 1 == c) ranges_.back().second = c;
  else ranges_.push_back({c, c});
}

template <class Contains>
CharSet CharSet::of_all(Contains contains) {
  CharSet set;
  for (char32_t c = 0; c <= kLast; ++c)
    if (contains(c)) set.append(c);
  return set;
}

CharSet& CharSet::add(const CharSet& other) {
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
  static const auto by_category = [] {  // one pass over all code points, on first use
    std::array<CharSet, kNumCategories> sets;
    for (char32_t c = 0; c <= kLast; ++c) sets[static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(c)))].append(c);
    return sets;
  }();
  CharSet set;
  for (size_t i = 0; i < kNumCategories; ++i)
    if (!name.empty() && name.size() <= 2 && kNames[i].starts_with(name)) set.add(by_category[i]);
  return set.empty() ? std::nullopt : std::optional(std::move(set));
}

CharSet CharSet::space() {
  static const CharSet set = of_all(is_space);
  return set;
}

CharSet CharSet::word() {
  static const CharSet set = of_all(is_word_char);
  return set;
}

}  // namespace tandem::text
