// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/composed_rule.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "tandem/base/error.h"
#include "tandem/reward/graders.h"

namespace tandem::reward {
namespace {

class LengthRule : public Rule {
 public:
  explicit LengthRule(std::unique_ptr<Rule> math) : math_(std::move(math)) {}

  const std::string& name() const override { return name_; }
  void abandon() const noexcept override { math_->abandon(); }
  Score score(const Answer& answer) const override { return score_batch({&answer, 1}).front(); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const override {
    std::vector<Score> scores = math_->score_batch(answers);
    std::vector<bool> right;
    std::vector<int64_t> tokens;
    for (size_t i = 0; i < scores.size(); ++i) {
      right.push_back(scores[i].score > 0);
      tokens.push_back(answers[i].response_tokens);
    }
    const std::vector<double> rewards = length_rewards(right, tokens);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = {rewards[i], {{name_, rewards[i]}}, std::move(scores[i].extracted)};
    return scores;
  }

 private:
  std::unique_ptr<Rule> math_;
  std::string name_ = "length";
};

class BySource : public Rule {
 public:
  BySource(std::vector<SourceRule> rules, std::unique_ptr<Rule> others) : others_(std::move(others)) {
    for (SourceRule& one : rules)
      if (!rules_.emplace(one.source, std::move(one.rule)).second)
        throw UserError("reward.by_source", "the data set `" + one.source + "` stands there twice", "expected one rule for each");
  }

  const std::string& name() const override { return name_; }
  bool needs_gold() const override { return any([](const Rule& rule) { return rule.needs_gold(); }); }
  bool reads_gold() const override { return any([](const Rule& rule) { return rule.reads_gold(); }); }
  bool reads_columns() const override { return any([](const Rule& rule) { return rule.reads_columns(); }); }
  void abandon() const noexcept override {
    for (const auto& [source, rule] : rules_) rule->abandon();
    if (others_) others_->abandon();
  }

  Score score(const Answer& answer) const override { return rule_for(answer.data_source).score(answer); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const override {
    std::vector<Score> scores;
    // The answers of a group are of one data set, and a rule may compare them.
    for (size_t begin = 0, end = 0; begin < answers.size(); begin = end) {
      while (end < answers.size() && answers[end].data_source == answers[begin].data_source) ++end;
      std::ranges::move(rule_for(answers[begin].data_source).score_batch(answers.subspan(begin, end - begin)), std::back_inserter(scores));
    }
    return scores;
  }

 private:
  template <class Condition>
  bool any(const Condition& condition) const {
    return (others_ && condition(*others_)) || std::ranges::any_of(rules_, [&](const auto& one) { return condition(*one.second); });
  }

  const Rule& rule_for(const std::string& source) const {
    if (const auto found = rules_.find(source); found != rules_.end()) return *found->second;
    if (others_) return *others_;
    std::string names;
    for (const auto& [name, rule] : rules_) names += (names.empty() ? "" : ", ") + name;
    throw UserError("reward.by_source", "has no rule for the data set `" + source + "`",
                    "it has some for " + names + "; data.source_column names the data sets, reward.rule serves the others");
  }

  std::map<std::string, std::shared_ptr<Rule>> rules_;
  std::unique_ptr<Rule> others_;
  std::string name_ = "by_source";
};

}  // namespace

std::unique_ptr<Rule> length_rule(std::unique_ptr<Rule> math) { return std::make_unique<LengthRule>(std::move(math)); }

std::unique_ptr<Rule> by_source(std::vector<SourceRule> rules, std::unique_ptr<Rule> others) {
  return std::make_unique<BySource>(std::move(rules), std::move(others));
}

}  // namespace tandem::reward
