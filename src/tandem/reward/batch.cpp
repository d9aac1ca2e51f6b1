// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/batch.h"

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/strings.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {

using nlohmann::json;

namespace {

json columns_of(const Answer& answer) {
  json columns = parse_or_discard<json>(answer.columns.empty() ? "{}" : answer.columns);
  return columns.is_object() ? columns : json::object();
}

Score score_of(const json& item, const std::string& name) {
  Score score;
  if (item.at(0).is_null()) return score;
  score.score = item.at(0).get<double>();
  score.parts.emplace_back(name, score.score);
  for (const auto& [part, value] : item.at(1).items()) score.parts.emplace_back(name + "/" + part, value.get<double>());
  score.extracted = item.at(2).get<std::string>();
  return score;
}

}  // namespace

std::string batch_json(std::span<const Answer> answers) {
  json batch = {{"seed", answers.empty() ? 0 : answers.front().group}};
  for (const char* name : {"prompts", "completions", "answers", "data_sources", "response_tokens", "truncated"})
    batch[name] = json::array();
  std::string columns;  // as they are written
  for (const Answer& answer : answers) {
    batch["prompts"].push_back(text::repair_utf8(answer.prompt));
    batch["completions"].push_back(text::repair_utf8(answer.response));
    batch["answers"].push_back(text::repair_utf8(answer.gold));
    batch["data_sources"].push_back(text::repair_utf8(answer.data_source));
    batch["response_tokens"].push_back(answer.response_tokens);
    batch["truncated"].push_back(answer.truncated);
    columns += (columns.empty() ? "" : ",") + (columns_of(answer).empty() ? "{}" : answer.columns);
  }
  std::string text = batch.dump();
  text.pop_back();
  return text + ",\"columns\":[" + columns + "]}";
}

json column_of(const Answer& answer, const std::string& name) {
  json at = columns_of(answer);
  if (at.contains(name)) return at[name];
  for (const std::string_view part : split(name, '.')) {
    if (!at.is_object() || !at.contains(part)) return nullptr;
    at = json(std::move(at[std::string(part)]));
  }
  return at;
}

std::vector<Score> scores_of(const json& reply, size_t count, const std::string& name) {
  std::vector<Score> scores;
  try {
    for (const json& item : reply) scores.push_back(score_of(item, name));
  } catch (const json::exception&) {
    throw UserError(name, "answered " + reply.dump().substr(0, 80), "expected a score per answer");
  }
  if (scores.size() != count)
    throw UserError(name, "gave " + std::to_string(scores.size()) + " scores for " + std::to_string(count) + " answers",
                    "expected one per answer");
  return scores;
}

}  // namespace tandem::reward
