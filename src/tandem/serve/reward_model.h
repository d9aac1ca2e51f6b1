// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule `model`: the score that a reward model gives the last token of prompt and response. docs/rewards.md says what it reads.

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tandem/device/arena.h"
#include "tandem/reward/rule.h"

namespace tandem::serve {

/// Threads of one grading thread's pass: one, where generation has the cores, or as many as the grading thread has.
inline constexpr int kBesideGeneration = 1, kAlone = 0;

/// Ownership  owns the weights of every model that its rules score by, one copy for each directory and dtype; must outlive the rules.
///            The weights count as "reward_model" in the arena.
/// Threads    one makes the rules; these score in any number of threads at once.
/// Errors     when a rule is made: UserError for a directory that is missing, no reward model, of several labels or without a
///            tokenizer. When it scores: UserError for messages that the chat template refuses and for a text without a token.
class RewardModels {
 public:
  explicit RewardModels(int threads, device::Arena arena = device::Arena("device"));
  ~RewardModels();
  RewardModels(const RewardModels&) = delete;
  RewardModels& operator=(const RewardModels&) = delete;

  /// Makes the rule `model` for reward::make_reward.
  reward::ModelRuleMaker maker();

  class Model;

 private:
  int threads_;
  device::Arena arena_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<const Model>> models_;  // by directory and dtype
};

}  // namespace tandem::serve
