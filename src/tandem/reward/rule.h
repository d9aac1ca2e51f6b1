// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rule gives an answer a score. Rules are looked up by name; a reward is one rule or a weighted sum of several.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/reward/options.h"

namespace tandem::reward {

struct Answer {
  std::string response;
  std::string gold;
  int64_t response_tokens = 0;
  bool truncated = false;  ///< stopped by the length limit
  std::vector<std::string> choices = {};  ///< choice: the texts of A, B, ... where the gold may be one of them or its index
  std::string prompt = {};       ///< as the model saw it
  std::string messages = {};     ///< what that was rendered from: {"messages":[], "tools":[]} as JSON; "" for a plain text
  std::string data_source = {};  ///< name of its data set
  std::string columns = {};      ///< the fields of its row, one JSON object; "" if none
  int64_t group = 0;             ///< seeds what a user's function draws
};

struct Score {
  double score = 0;
  std::vector<std::pair<std::string, double>> parts;  ///< every part by name, unweighted
  std::string extracted;                              ///< what the rule took as the answer; "" if nothing
};

struct RuleNeeds {
  bool gold = true;         ///< it scores by a right answer alone
  bool columns = false;     ///< it goes by Answer::columns, so that those must be kept
  bool reads_gold = gold;   ///< it goes by a right answer where there is one, so that whoever scores by it must have that
};

/// A rule from a function of several answers, which gives one score per answer, in their order.
/// Threads    score() may run in any number of threads at once.
/// Errors     UserError for a gold or pattern the rule cannot use; a wrong answer is a score, never an error.
class Rule {
 public:
  using Function = std::function<std::vector<Score>(std::span<const Answer>)>;
  /// `abandon` may be empty, and does not throw.
  Rule(std::string name, RuleNeeds needs, Function function, std::function<void()> abandon = {})
      : name_(std::move(name)), needs_(needs), function_(std::move(function)), abandon_(std::move(abandon)) {}
  virtual ~Rule() = default;
  Score score(const Answer& answer) const { return score_batch({&answer, 1}).at(0); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const { return function_(answers); }
  const std::string& name() const { return name_; }
  bool needs_gold() const { return needs_.gold; }
  bool reads_gold() const { return needs_.reads_gold; }
  bool reads_columns() const { return needs_.columns; }
  /// Makes the calls in progress end soon, by throwing; later ones work.
  void abandon() const noexcept {
    if (abandon_) abandon_();
  }

 private:
  std::string name_;
  RuleNeeds needs_;
  Function function_;
  std::function<void()> abandon_;
};

/// A rule from a function of one answer; parts hold its score under its name unless it fills them.
class FunctionRule : public Rule {
 public:
  using Needs = RuleNeeds;
  FunctionRule(const std::string& name, std::function<Score(const Answer&)> function, Needs needs = {}, std::function<void()> abandon = {});
};

/// A rule from a function of the answers to a prompt; it asks for no right answer, and reads columns.
std::unique_ptr<Rule> batch_rule(std::string name, Rule::Function function);

std::vector<std::string> rule_names();
/// Those in a line, as help and errors have them.
std::string listed_rules();

/// Makes the rule `model`: what runs a model is above this module (serve/reward_model.h).
using ModelRuleMaker = std::function<std::unique_ptr<Rule>(const Options&)>;

/// One rule from `name` or `name(option=value, ...)`. Errors: UserError with the nearest name, and for `model` without a maker.
std::unique_ptr<Rule> make_rule(const std::string& spec, const Options& options = {}, const ModelRuleMaker& model = {});
/// options.rule, or what stands for an empty one.
std::string rule_of(const Options& options);
/// The names of all rules of a reward, without their options and weights.
std::vector<std::string> rule_names(const Options& options);
/// Throws UserError at `where` if a function, a server or a model is named and no rule goes by it.
void check_used(const Options& options, const std::string& where);
/// Files of the functions that its rules call. Errors: as rule_of.
std::vector<std::string> python_files(const Options& options);

/// The reward of a recipe: options.by_source, or options.rules as a weighted sum, or rule_of(options).
std::unique_ptr<Rule> make_reward(const Options& options, const ModelRuleMaker& model = {});

}  // namespace tandem::reward
