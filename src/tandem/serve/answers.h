// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers to held-out problems under given weights, graded: evaluation, of a run between its steps (runtime/stage/evaluator.h) and alone
// (inference.h). Rollout for training is runtime/sample/rollout_role.h.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/data/sample_store.h"
#include "tandem/generate/setup.h"
#include "tandem/reward/scorer.h"
#include "tandem/rollout/engine.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::serve {

struct NamedSummary;

struct EvalSummary {
  double accuracy = 0;         ///< share of all answers that count as right
  double pass_at_k = 0;        ///< share of problems with a right answer among its n
  int64_t num_problems = 0;
  double tokens_per_s = 0;
  double mean_score = 0;       ///< over all answers, whatever counts as right
  std::vector<NamedSummary> sets;  ///< of the sets that have names; the numbers above are over all of them

  /// Whether the mean score says more than the accuracy: scores are not 0 and 1 alone.
  bool graded() const { return mean_score != accuracy; }
};
struct NamedSummary {
  std::string name;
  EvalSummary summary;
};

struct AnswerRequest {
  const model::Decoder& decoder;
  const model::ModelParameters& parameters;
  device::Arena& arena;
  const text::Tokenizer* tokenizer;     ///< null: ids only
  rollout::Options engine;
  generate::GenerateSetup setup;
  int64_t first_group = 0, group_stride = 1;   ///< group i of this call is number first_group + i * group_stride
  StopRequested stop_requested;
  rollout::Engine* idle_engine = nullptr;      ///< with these weights already; null: an engine of its own
};

/// Runs an engine over the prompts; `emit` gets the groups in order. Returns sampled tokens.
/// Errors: UserError as Engine::submit; Interrupted if asked to stop.
int64_t answer_prompts(const AnswerRequest& request, std::vector<data::Prompt> prompts, const std::function<void(data::Group&&)>& emit);

struct Grading {
  const reward::Rule* rule = nullptr;  ///< null: answers are not graded here
  reward::Grading how = {};            ///< beside generation
  double timeout_s = 3600;             ///< for one group's grade, once all is generated
  StopRequested stop = {};             ///< asked while grades are awaited, as often as that takes: of this rank alone
};

struct Graded {
  std::vector<data::Group> groups;
  double tokens_per_s = 0;             ///< sampled, while they were generated
};
/// The same, each group graded beside generation by a Scorer of its own. `graded` hears of each in order. It talks to nobody but the
/// engine's peers.
/// Errors: as answer_prompts; what the rule throws, after the last token where peers of the engine would wait; PeerError at the timeout.
Graded answer_and_grade(const AnswerRequest& request, std::vector<data::Prompt> prompts, const Grading& grading,
                        const std::function<void(const data::Group&)>& graded = {});

/// As the sample store keeps them: all groups of all sets of `prompts` in their order.
std::vector<data::EvalAnswer> eval_answers(const std::vector<data::Group>& groups, const PromptStream& prompts);

/// Accuracy, mean score and pass@k of scored groups. An answer counts as right from the score `right_at` on.
EvalSummary summarize(std::span<const data::Group> groups, double right_at);
/// The same of a whole evaluation: all groups of all sets in their order.
EvalSummary summarize(std::span<const data::Group> groups, const std::vector<PromptStream::Set>& sets, double right_at);

}  // namespace tandem::serve
