// SPDX-License-Identifier: Apache-2.0
#pragma once
// Supervised training on problems and their right answers: `tandem sft`, and the warm start before RL.

#include "tandem/reward/rule.h"
#include "tandem/runtime/actor.h"
#include "tandem/runtime/progress.h"
#include "tandem/runtime/session/prompt_stream.h"
#include "tandem/runtime/folder/run_folder.h"
#include "tandem/runtime/folder/run_state.h"

namespace tandem::runtime {

/// One rank of the run. Writes checkpoints as it goes and RUN_DIR/hf at the end.
/// Errors     as run_supervised.
class SupervisedRun {
 public:
  SupervisedRun(const RunRequest& request, RankContext& context, RunFolder* folder, const std::string& model_dir);
  RunSummary run();

 private:
  void step();
  void save();
  bool reached_accuracy();

  const RunRequest& request_;
  const RunConfig& config_;
  RankContext& context_;
  RunFolder* folder_;
  std::string model_dir_;
  text::Tokenizer tokenizer_;
  std::unique_ptr<reward::Rule> reward_;
  PromptStream prompts_;
  Actor actor_;
  StateFiles files_;
  Progress progress_;
  RunState state_;
  double started_s_ = 0, seconds_before_ = 0;
};

}  // namespace tandem::runtime
