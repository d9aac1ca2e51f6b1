// SPDX-License-Identifier: Apache-2.0
// Answers as models make them up: a given one, a line break, the right one. Nothing may crash, run on, or depend on the call.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tandem/reward/math/hendrycks.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/math/math_expr.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::reward;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  const std::string_view given = text.substr(0, line), gold = line == std::string_view::npos ? "" : text.substr(line + 1);
  final_answer(text);
  mathd_or_symbolic_equal(given, gold);
  can_compare(given, gold);
  const bool same = same_answer(given, gold);
  if (same != same_answer(given, gold)) std::abort();
  const ExprPtr expression = parse_expression(given);
  if (expression) same_value(*expression, *expression);
  return 0;
}
