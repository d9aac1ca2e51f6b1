// SPDX-License-Identifier: Apache-2.0
#pragma once
// A batch of answers as what a user's function or server sees, and what they say as scores.

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tandem/reward/rule.h"

namespace tandem::reward {

/// {"prompts", "completions", "answers", "data_sources", "response_tokens", "truncated", "columns": one list each, an entry per
/// answer, and "seed"}, as text. Columns stand as the row has them, with every digit of their numbers. Ill-formed UTF-8 becomes U+FFFD.
std::string batch_json(std::span<const Answer> answers);

/// The column of that name, or the one its dots lead to; null if there is none.
nlohmann::json column_of(const Answer& answer, const std::string& name);

/// Scores from [[score or null, {part: number}, extracted], ...]. Parts are named `name` and `name/part`; null, "does not
/// apply", scores 0 and has no part. Errors: UserError naming `name` for another form or another number of them.
std::vector<Score> scores_of(const nlohmann::json& reply, size_t count, const std::string& name);

}  // namespace tandem::reward
