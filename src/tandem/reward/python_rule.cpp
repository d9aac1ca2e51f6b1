// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/python_rule.h"

#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/reward/backend/scripts.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/backend/python_workers.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {
namespace {

class PythonRule : public Rule {
 public:
  PythonRule(std::string name, PythonFunction function, WorkerOptions options)
      : name_(std::move(name)), workers_(std::make_unique<PythonWorkers>(std::move(function), std::move(options))) {}

  const std::string& name() const override { return name_; }
  void abandon() const noexcept override { workers_->abandon(); }
  bool needs_gold() const override { return name_ == "math_verify"; }  // what a user's function needs is its own affair
  bool reads_gold() const override { return true; }
  bool reads_columns() const override { return !needs_gold(); }
  Score score(const Answer& answer) const override { return score_batch({&answer, 1}).front(); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const override {
    if (answers.empty()) return {};
    const nlohmann::json reply = workers_->call(batch_json(answers));
    const auto scores = reply.find("scores");
    // A function may write to the worker's channel, and then it is the function's reply.
    if (scores == reply.end() || !scores->is_array()) throw UserError(name_, "gave no scores", "expected a score per answer");
    return scores_of(*scores, answers.size(), name_);
  }

 private:
  std::string name_;
  std::unique_ptr<PythonWorkers> workers_;
};

class MathWithFallback : public Rule {
 public:
  MathWithFallback(std::unique_ptr<Rule> math, std::unique_ptr<Rule> verify) : math_(std::move(math)), verify_(std::move(verify)) {}

  const std::string& name() const override { return math_->name(); }
  void abandon() const noexcept override { verify_->abandon(); }
  Score score(const Answer& answer) const override { return score_batch({&answer, 1}).front(); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const override {
    std::vector<Score> scores = math_->score_batch(answers);
    std::vector<Answer> open;
    std::vector<size_t> places;
    for (size_t i = 0; i < scores.size(); ++i) {
      if (scores[i].score > 0 || can_compare(scores[i].extracted, answers[i].gold)) continue;
      open.push_back(answers[i]);
      places.push_back(i);
    }
    if (open.empty()) return scores;
    std::vector<Score> verified = verify_->score_batch(open);
    for (size_t i = 0; i < places.size(); ++i)
      scores[places[i]] = {verified[i].score, {{name(), verified[i].score}}, std::move(verified[i].extracted)};
    return scores;
  }

 private:
  std::unique_ptr<Rule> math_, verify_;
};

WorkerOptions worker_options(const PythonOptions& o, const BatchOptions& batch, const std::string& python) {
  WorkerOptions options;
  options.executable = python;
  options.num_workers = batch.workers;
  options.notices = batch.notices;
  options.timeout_s = batch.timeout_s;
  options.retries = o.python_retries;
  options.memory_bytes = o.python_memory_mib << 20;
  return options;
}

}  // namespace

void describe(OptionVisitor& field, PythonOptions& o) {
  field("python", o.python, "python: a function of yours, FILE.py:NAME; docs/rewards.md has its form.");
  field("python_executable", o.python_executable,
        "python, math_verify, code, episode.environment: the Python that runs them; empty: that of an installed wheel, else python3 on "
        "PATH (math_verify: the one scripts/setup made).");
  field("python_retries", o.python_retries, "python, math_verify: how often a batch whose worker died or hung is tried again.",
        at_least(0));
  field("python_memory_mib", o.python_memory_mib,
        "python, math_verify, episode.environment: MiB of data that a worker process, and each that it starts, may have; 0: no limit.",
        at_least(0));
}
void describe(OptionVisitor& field, MathOptions& o) {
  field("fallback", o.fallback, "math: who is asked where the built-in comparison cannot read an answer.", one_of({"none", "math_verify"}));
}

std::unique_ptr<Rule> python_rule(const PythonOptions& o, const BatchOptions& batch) {
  const size_t colon = o.python.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == o.python.size())
    throw UserError("reward.python", o.python.empty() ? "is empty, and the rule python needs it" : "`" + o.python + "` names no function",
                    "expected FILE.py:FUNCTION, such as rewards.py:score; in a rule: python(python=rewards.py:score)");
  PythonFunction function{"reward.python " + o.python, o.python.substr(0, colon), "", o.python.substr(colon + 1)};
  if (!std::filesystem::is_regular_file(function.file))
    throw UserError("reward.python", "there is no file " + function.file, "expected FILE.py:FUNCTION, from the present folder");
  const std::string name = "python/" + function.function;
  return std::make_unique<PythonRule>(name, std::move(function), worker_options(o, batch, python_for(o.python_executable)));
}

std::unique_ptr<Rule> math_with_fallback(std::unique_ptr<Rule> math, std::unique_ptr<Rule> verify) {
  return std::make_unique<MathWithFallback>(std::move(math), std::move(verify));
}

std::unique_ptr<Rule> math_verify_rule(const PythonOptions& o, const BatchOptions& batch) {
  // scripts/setup installs the package beside the build's own Python, where that is still there.
  const std::string ours(build_python());
  const std::string python = !o.python_executable.empty() ? o.python_executable : std::filesystem::exists(ours) ? ours : "python3";
  PythonFunction function{"rule math_verify (" + python + ")", "", std::string(script("math_verify.py")), "score"};
  return std::make_unique<PythonRule>("math_verify", std::move(function), worker_options(o, batch, python));
}

}  // namespace tandem::reward
