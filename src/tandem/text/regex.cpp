// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

constexpr size_t kBoundedSteps = 2'000'000, kBoundedStepsPerByte = 64;  // of one search

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  bool jit = false, is_bounded = false;
  std::string where, pattern;
  ~Code() { pcre2_code_free(compiled); }
};

struct Regex::Scan::State {
  const Regex::Code* code;
  std::string_view text;
  pcre2_match_data* match;
  pcre2_match_context* limits;
  size_t at = 0;
};

Regex::Regex(const std::string& pattern, const std::string& where, Effort effort) : code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error,
                                  &offset, nullptr);
  if (!code_->compiled)
    throw UserError(where, "the regular expression `" + pattern + "` does not compile",
                    pcre_message(error) + " at offset " + std::to_string(offset));
  code_->jit = pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE) == 0;
  code_->is_bounded = effort == Effort::kBounded;
  code_->where = where;
  code_->pattern = pattern;
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Scan::Scan(const Regex& regex, std::string_view text) : state_(std::make_unique<State>()) {
  state_->code = regex.code_.get();
  state_->text = text;
  state_->match = pcre2_match_data_create_from_pattern(state_->code->compiled, nullptr);
  state_->limits = pcre2_match_context_create(nullptr);
  TANDEM_CHECK(state_->match && state_->limits, "out of memory");
  const size_t steps = state_->code->is_bounded ? kBoundedSteps + kBoundedStepsPerByte * text.size() : UINT32_MAX;
  pcre2_set_match_limit(state_->limits, static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
}
Regex::Scan::~Scan() {
  pcre2_match_context_free(state_->limits);
  pcre2_match_data_free(state_->match);
}

// The result of PCRE2 for the next match; moves on behind it.
int Regex::Scan::search() {
  State& s = *state_;
  if (s.at > s.text.size()) return PCRE2_ERROR_NOMATCH;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(s.text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  // Without NO_UTF_CHECK every call would check the whole text again: quadratic.
  if (s.code->jit) rc = pcre2_jit_match(s.code->compiled, subject, s.text.size(), s.at, PCRE2_NO_UTF_CHECK, s.match, s.limits);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
    rc = pcre2_match(s.code->compiled, subject, s.text.size(), s.at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s.match, s.limits);
  if (rc < 0) {
    s.at = s.text.size() + 1;
    return rc;
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(s.match);
  s.at = ends[1] > ends[0] ? ends[1]
         : ends[1] < s.text.size() ? ends[1] + utf8_step(s.text.substr(ends[1], 4)).length : s.text.size() + 1;
  return rc;
}

bool Regex::Scan::next() {
  const int rc = search();
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
    throw UserError(state_->code->where, "matching `" + state_->code->pattern + "` failed: " + pcre_message(rc),
                    "expected a pattern that does not backtrack without end");
  return rc >= 0;
}

bool Regex::Scan::next_or_give_up() { return search() >= 0; }

Span Regex::Scan::group(size_t index) const {
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->match);
  if (ends[2 * index] == PCRE2_UNSET) return {1, 0};
  return {ends[2 * index], ends[2 * index + 1]};
}
size_t Regex::Scan::num_groups() const { return pcre2_get_ovector_count(state_->match); }

std::string Regex::Scan::text(size_t index) const {
  const Span span = group(index);
  return span.begin > span.end ? std::string() : std::string(state_->text.substr(span.begin, span.end - span.begin));
}

bool Regex::may_match_nothing() const {
  uint32_t may = 0;
  TANDEM_CHECK(pcre2_pattern_info(code_->compiled, PCRE2_INFO_MATCHEMPTY, &may) == 0, "no facts about a pattern");
  return may != 0;
}

bool Regex::found_in(std::string_view text) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repair_utf8(text);
  return Scan(*this, text).next_or_give_up();
}

}  // namespace tandem::text
