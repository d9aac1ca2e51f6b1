// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/python_rule.h"

#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/reward/backend/scripts.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/composed_rule.h"
#include "tandem/reward/math/math_answer.h"
#include "tandem/reward/backend/python_workers.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {
namespace {

WorkerOptions worker_options(const PythonOptions& o, const BatchOptions& batch, const std::string& python) {
  return {.executable = python,
          .num_workers = batch.workers,
          .timeout_s = batch.timeout_s,
          .retries = o.python_retries,
          .memory_bytes = o.python_memory_mib << 20,
          .notices = batch.notices};
}

std::unique_ptr<Rule> worker_rule(const std::string& name, RuleNeeds needs, PythonFunction function, WorkerOptions options) {
  const auto workers = std::make_shared<PythonWorkers>(std::move(function), std::move(options));
  const auto score = [name, workers](std::span<const Answer> answers) -> std::vector<Score> {
    if (answers.empty()) return {};
    const nlohmann::json reply = workers->call(batch_json(answers));
    const auto scores = reply.find("scores");
    // A function may write to the worker's channel, and then it is the function's reply.
    if (scores == reply.end() || !scores->is_array()) throw UserError(name, "gave no scores", "expected a score per answer");
    return scores_of(*scores, answers.size(), name);
  };
  return std::make_unique<Rule>(name, needs, score, [workers] { workers->abandon(); });
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
  const RuleNeeds needs{false, true, true};  // what a user's function needs is its own affair
  return worker_rule(name, needs, std::move(function), worker_options(o, batch, python_for(o.python_executable)));
}

std::unique_ptr<Rule> math_with_fallback(std::unique_ptr<Rule> math, std::unique_ptr<Rule> verify) {
  const std::shared_ptr<Rule> first = std::move(math), second = std::move(verify);
  return composed_rule(first->name(), {first, second}, [first, second](std::span<const Answer> answers) {
    std::vector<Score> scores = first->score_batch(answers);
    std::vector<Answer> open;
    std::vector<size_t> places;
    for (size_t i = 0; i < scores.size(); ++i) {
      if (scores[i].score > 0 || can_compare(scores[i].extracted, answers[i].gold)) continue;
      open.push_back(answers[i]);
      places.push_back(i);
    }
    if (open.empty()) return scores;
    std::vector<Score> verified = second->score_batch(open);
    for (size_t i = 0; i < places.size(); ++i)
      scores[places[i]] = {verified[i].score, {{first->name(), verified[i].score}}, std::move(verified[i].extracted)};
    return scores;
  });
}

std::unique_ptr<Rule> math_verify_rule(const PythonOptions& o, const BatchOptions& batch) {
  const std::string python = package_python(o.python_executable);
  PythonFunction function{"rule math_verify (" + python + ")", "", std::string(script("math_verify.py")), "score"};
  return worker_rule("math_verify", {}, std::move(function), worker_options(o, batch, python));
}

}  // namespace tandem::reward
