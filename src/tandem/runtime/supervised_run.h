// SPDX-License-Identifier: Apache-2.0
#pragma once
// Supervised steps on prompts and their answers: `tandem sft`, and the warm start before RL. All ranks train.

#include <array>
#include <optional>
#include <string>

#include "tandem/policy/actor.h"
#include "tandem/runtime/folder/ledger.h"
#include "tandem/runtime/run.h"
#include "tandem/runtime/stage/evaluator.h"
#include "tandem/serve/prompt_stream.h"
#include "tandem/serve/reward_model.h"

namespace tandem::runtime {

/// Threads    one per rank; all ranks make the same calls.
/// Errors     as run_supervised.
class SupervisedRun {
 public:
  /// `folder` is null on all ranks but the first. `model_dir` is where the run starts, `model` its config.
  SupervisedRun(const RunRequest& request, const policy::RunParts& parts, RunFolder* folder, const std::string& model_dir,
                const model::ModelConfig& model);
  RunSummary run();

 private:
  void show(int64_t step, const std::string& what);  // in the last line of a terminal
  void step();
  void record(const train::StepReport& report, double begin_s);
  Evaluation evaluation();
  bool reached_accuracy();
  void evaluate_before();
  std::optional<serve::EvalSummary> evaluate();  // nullopt: asked to stop
  bool conclude_step();                          // whether the accuracy is reached
  void train_to_end();
  [[noreturn]] void stop(const std::string& where);

  const RunRequest& request_;
  const policy::RunParts& parts_;
  text::Tokenizer tokenizer_;
  serve::RewardModels reward_models_;
  std::unique_ptr<reward::Rule> reward_;
  std::shared_ptr<const generate::Environment> environment_;  // where this rank talks to it
  serve::PromptStream prompts_;
  std::optional<serve::PromptStream> eval_prompts_;  // none: no evaluation
  policy::Actor actor_;
  const std::array<policy::TrainedRole*, 1> trained_{&actor_.trained()};
  Ledger ledger_;
  std::optional<serve::EvalSummary> last_eval_;  // of the last step
};

}  // namespace tandem::runtime
