// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/graders.h"
#include "tandem/reward/worker_rules.h"

namespace tandem::reward {
namespace {

class LengthRule : public Rule {
 public:
  explicit LengthRule(const Options& options) : math_(make_rule("math", options)) {}

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

}  // namespace

std::unique_ptr<Rule> length_rule(const Options& options) { return std::make_unique<LengthRule>(options); }

}  // namespace tandem::reward
