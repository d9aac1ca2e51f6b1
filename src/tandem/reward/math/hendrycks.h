// SPDX-License-Identifier: Apache-2.0
#pragma once
// The boxed answer of a solution, and the string normaliser of the MATH data set (Hendrycks et al., 2021) with its two
// descendants. They differ on purpose; each follows its own reference values.

#include <optional>
#include <string>
#include <string_view>

namespace tandem::reward {

/// The last `\boxed{...}` (or `\boxed x`), else the last `\fbox`, with its closing brace. Nullopt if absent or never closed.
std::optional<std::string> last_boxed(std::string_view text);
/// What `\boxed{...}` holds; nullopt if the text is not of that form.
std::optional<std::string> inside_box(std::string_view boxed);
/// Both in one: what the last box of a text holds.
std::optional<std::string> boxed_answer(std::string_view text);

std::string hendrycks_normal(std::string text);
bool hendrycks_equal(std::string_view a, std::string_view b);

/// As hendrycks_normal with an outer `\text{...}` unwrapped first.
std::string mathd_normal(std::string_view text);
/// mathd equality, or equality after the looser normalisation with numbers compared by value.
bool mathd_or_symbolic_equal(std::string_view given, std::string_view gold);
bool symbolic_equal(std::string_view given, std::string_view gold);

}  // namespace tandem::reward
