// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sets of Unicode code points, as the classes of a regular expression name them.

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::text {

/// Ownership  a value.
class CharSet {
 public:
  using Range = std::pair<char32_t, char32_t>;  ///< first and last, both included
  static constexpr char32_t kLast = 0x10FFFF;

  CharSet() = default;
  explicit CharSet(char32_t only) : ranges_{{only, only}} {}
  CharSet(char32_t first, char32_t last) : ranges_{{first, last}} {}
  /// By general category: `L`, `Lu`, `N`, ... No value for a name that is none.
  static std::optional<CharSet> category(std::string_view name);
  static CharSet space();    ///< the property White_Space
  static CharSet word();     ///< letters and what is written like them, marks, decimal digits, connectors such as `_`

  CharSet& add(const CharSet& other);
  CharSet complement() const;
  bool contains(char32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  /// Ascending, apart from each other.
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  template <class Contains>
  static CharSet of_all(Contains contains);
  void append(char32_t code_point);  // one behind all others
  std::vector<Range> ranges_;
};

}  // namespace tandem::text
