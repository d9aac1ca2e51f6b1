// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compiled regular expressions (PCRE2 with Unicode classes, just-in-time compiled).

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

/// Half-open byte range of a match or group; begin > end marks a group that took no part.
struct Span {
  size_t begin, end;
};

/// Threads    find and scan may run in any number of threads at once.
/// Errors     UserError if the pattern does not compile, or if a scan takes too many steps (kBounded only).
class Regex {
 public:
  enum class Effort {
    kBounded,  ///< a pattern from a user: a search that backtracks without end is an error; the longer the text, the later
    kTrusted,  ///< a pattern known to run in linear time: texts of any length
  };
  /// `where` is named in errors.
  Regex(const std::string& pattern, const std::string& where, Effort effort = Effort::kBounded);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// Walks over the matches of one text from left to right. `text` must be valid UTF-8 and outlive the scan.
  class Scan {
   public:
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    /// False after the last match. An empty match moves the scan on by one character.
    bool next();
    /// As next(), but false where the search gives up after too many steps.
    bool next_or_give_up();
    Span group(size_t index = 0) const;
    size_t num_groups() const;  ///< with the whole match
    std::string text(size_t index = 0) const;

   private:
    struct State;
    int search();
    std::unique_ptr<State> state_;
  };

  /// Calls found(begin, end) for every match from left to right. `text` must be valid UTF-8.
  template <class Found>
  void each_match(std::string_view text, Found found) const {
    for (Scan scan(*this, text); scan.next();) found(scan.group().begin, scan.group().end);
  }
  bool may_match_nothing() const;  ///< whether there is a text of which it matches an empty part
  /// False, too, if the search gives up after too many steps. A text and a pattern give a verdict, never an error.
  bool found_in(std::string_view text) const;
  /// The text with by(match) in place of each match, a Scan that stands there. `text` must be valid UTF-8.
  template <class By>
  std::string replaced_in(const std::string& text, By by) const {
    std::string out;
    size_t begin = 0;
    for (Scan scan(*this, text); scan.next(); begin = scan.group().end)
      out.append(text, begin, scan.group().begin - begin).append(by(scan));
    return out.append(text, begin);
  }

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// A pattern of this program, known to run in linear time.
struct TrustedRegex : Regex {
  explicit TrustedRegex(const std::string& pattern) : Regex(pattern, "a pattern of Tandem", Effort::kTrusted) {}
};

}  // namespace tandem::text
