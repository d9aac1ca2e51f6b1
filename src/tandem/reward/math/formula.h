// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where formulas stand in a text. A dollar sign begins a formula in LaTeX and an amount of money everywhere else.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::reward {

struct Formula {
  std::string inner;  ///< between its marks, trimmed
  size_t end = 0;     ///< behind its closing mark
};

/// The formula that the `$` or `$$` at `open` begins; nullopt where that sign stands for money or nothing closes it.
/// `$5 and $6`, `$12/3 = $4` and `5$ + 6$` are money, `$x+1$`, `$ 28 \% $` and `$$x$$` are formulas. Linear in the text.
std::optional<Formula> formula_at_dollar(std::string_view text, size_t open);

/// What the last formula between $, $$, \( \) or \[ \] holds; "" without one.
std::string last_formula(std::string_view text);

}  // namespace tandem::reward
