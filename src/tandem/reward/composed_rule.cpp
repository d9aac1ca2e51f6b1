// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/composed_rule.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "tandem/base/error.h"
#include "tandem/reward/graders.h"

namespace tandem::reward {

std::unique_ptr<Rule> composed_rule(std::string name, std::vector<std::shared_ptr<Rule>> parts, Rule::Function function) {
  const auto any = [&](bool (Rule::*says)() const) {
    return std::ranges::any_of(parts, [&](const auto& part) { return (*part.*says)(); });
  };
  const RuleNeeds needs{any(&Rule::needs_gold), any(&Rule::reads_columns), any(&Rule::reads_gold)};
  const auto abandon = [parts] {
    for (const auto& part : parts) part->abandon();
  };
  return std::make_unique<Rule>(std::move(name), needs, std::move(function), abandon);
}

std::unique_ptr<Rule> length_rule(std::unique_ptr<Rule> math) {
  const std::shared_ptr<Rule> shared = std::move(math);
  return composed_rule("length", {shared}, [shared](std::span<const Answer> answers) {
    std::vector<Score> scores = shared->score_batch(answers);
    std::vector<bool> right;
    std::vector<int64_t> tokens;
    for (size_t i = 0; i < scores.size(); ++i) {
      right.push_back(scores[i].score > 0);
      tokens.push_back(answers[i].response_tokens);
    }
    const std::vector<double> rewards = length_rewards(right, tokens);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = {rewards[i], {{"length", rewards[i]}}, std::move(scores[i].extracted)};
    return scores;
  });
}

std::unique_ptr<Rule> by_source(std::vector<SourceRule> rules, std::unique_ptr<Rule> others) {
  std::map<std::string, std::shared_ptr<Rule>> of_source;
  std::vector<std::shared_ptr<Rule>> all;
  std::string names;
  for (const SourceRule& one : rules) {
    if (!of_source.emplace(one.source, one.rule).second)
      throw UserError("reward.by_source", "the data set `" + one.source + "` stands there twice", "expected one rule for each");
    all.push_back(one.rule);
  }
  for (const auto& [source, rule] : of_source) names += (names.empty() ? "" : ", ") + source;
  const std::shared_ptr<Rule> rest = std::move(others);
  if (rest) all.push_back(rest);
  const auto rule_for = [of_source, rest, names](const std::string& source) -> const Rule& {
    if (const auto found = of_source.find(source); found != of_source.end()) return *found->second;
    if (rest) return *rest;
    throw UserError("reward.by_source", "has no rule for the data set `" + source + "`",
                    "it has some for " + names + "; data.source_column names the data sets, reward.rule serves the others");
  };
  return composed_rule("by_source", std::move(all), [rule_for](std::span<const Answer> answers) {
    std::vector<Score> scores;
    // The answers of a group are of one data set, and a rule may compare them.
    for (size_t begin = 0, end = 0; begin < answers.size(); begin = end) {
      while (end < answers.size() && answers[end].data_source == answers[begin].data_source) ++end;
      std::ranges::move(rule_for(answers[begin].data_source).score_batch(answers.subspan(begin, end - begin)), std::back_inserter(scores));
    }
    return scores;
  });
}

}  // namespace tandem::reward
