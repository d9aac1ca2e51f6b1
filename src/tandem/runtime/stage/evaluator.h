// SPDX-License-Identifier: Apache-2.0
#pragma once
// Problems answered and scored between two steps, by the ranks of a run together.

#include <memory>
#include <optional>
#include <vector>

#include "tandem/policy/actor.h"
#include "tandem/serve/answers.h"

namespace tandem::runtime {

/// Who answers, and what.
struct Evaluation {
  int64_t step = 0;                         ///< the last one before it, which errors name; 0 before training
  const model::Decoder* decoder = nullptr;  ///< null: this rank answers nothing
  const model::ModelParameters* parameters = nullptr;
  const model::Layout& layout;           ///< of the ranks that answer
  int rank;                              ///< this one's in it
  std::vector<data::Prompt> prompts;     ///< of this rank's data-parallel index: every dp-th problem
  int64_t n = 1;                         ///< answers to each
  uint64_t seed = 0;
  rollout::Engine* idle_engine = nullptr;  ///< with these weights already; null: an engine of its own
  const reward::Rule* rule = nullptr;      ///< null: somebody else scores them
  std::shared_ptr<const generate::Environment> environment;  ///< of episodes, where this rank talks to it
  StopRequested stop;                      ///< asked between tokens; peers that share a sequence get the same answer
  StopRequested stop_grading;              ///< asked while grades are awaited; of this rank alone
};

/// The answers of all ranks, ordered by problem; nullopt if the run was asked to stop. Collective over the world.
/// Errors: UserError as GroupAssembly::admit and as rules throw; PeerError for a grade that takes longer than schedule.take_timeout_s.
std::optional<std::vector<data::Group>> answers_of_all(const policy::RunParts& parts, const text::Tokenizer& tokenizer,
                                                       Evaluation evaluation);

/// Of evaluations in a run with that seed: a seed of its own, so that they never draw the numbers of training.
inline uint64_t evaluation_seed(int64_t run_seed) { return static_cast<uint64_t>(run_seed) ^ 0x65766171ull; }

/// The metrics eval/accuracy, eval/score_mean and eval/pass_at_k, and of each named set eval/NAME/accuracy and so on.
void record_eval(monitor::Recorder& recorder, const serve::EvalSummary& summary);

}  // namespace tandem::runtime
