// SPDX-License-Identifier: Apache-2.0
#pragma once
// Characters of well-formed UTF-8, by the rules of Python's str. Pure functions, linear in the text.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/unicode.h"

namespace tandem::text::jinja {

/// The characters of a text one after the other, each a part of it; found while walking, since a list of them would be many times as
/// large as the text.
class Characters {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using pointer = const std::string_view*;
    using reference = std::string_view;

    Iterator() = default;
    explicit Iterator(std::string_view rest) : rest_(rest), length_(first_length(rest)) {}
    std::string_view operator*() const { return rest_.substr(0, length_); }
    Iterator& operator++() {
      rest_.remove_prefix(length_);
      length_ = first_length(rest_);
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const { return rest_.size() == other.rest_.size(); }

   private:
    static size_t first_length(std::string_view text);
    std::string_view rest_;
    size_t length_ = 0;
  };

  explicit Characters(std::string_view text) : text_(text) {}
  Iterator begin() const { return Iterator(text_); }
  Iterator end() const { return Iterator(); }
  bool empty() const { return text_.empty(); }

 private:
  std::string_view text_;
};
inline Characters characters_of(std::string_view text) { return Characters(text); }
/// The text from character `begin` to before character `end`, in its order, as far as there are so many.
std::string_view characters_between(std::string_view text, int64_t begin, int64_t end);

/// White space as str.isspace() knows it.
bool is_space(char32_t c);
bool is_space(std::string_view text);  ///< true of every character, and there is one
bool is_alphabetic(char32_t c);
bool is_digit(char32_t c);
/// What repr() writes as it is.
bool is_printable(char32_t c);
char32_t code_point(std::string_view character);

enum class Side { kLeft, kRight, kBoth };
/// Without white space at its ends.
std::string_view strip(std::string_view text, Side side = Side::kBoth);
/// Without those characters at its ends.
std::string_view strip(std::string_view text, std::string_view characters, Side side);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// In one case throughout, upper with `up`, and with a letter that has a case.
bool is_cased(std::string_view text, bool up);
/// First character in upper case, the rest in lower case.
std::string capitalize(std::string_view text);
/// Every run of letters capitalised.
std::string title(std::string_view text);

/// At \n, \r, \r\n and Unicode's other line ends, without them.
std::vector<std::string_view> lines_of(std::string_view text);
/// As many as lines_of() finds, or more.
int64_t most_lines(std::string_view text);

}  // namespace tandem::text::jinja
