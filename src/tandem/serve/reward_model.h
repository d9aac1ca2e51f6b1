// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule `model`: the score that a reward model gives the last token of prompt and response. docs/rewards.md says what it reads.

#include <memory>
#include <string>

#include "tandem/device/arena.h"
#include "tandem/reward/rule.h"

namespace tandem::serve {

/// Threads of one grading thread's pass: one, where generation has the cores, or as many as the grading thread has.
inline constexpr int kBesideGeneration = 1, kAlone = 0;

/// Makes the rule `model` for reward::make_reward. Its weights count as "reward_model" in the arena; rules of one directory and
/// dtype share them.
/// Threads    the rules score in any number of threads at once, over one copy of the weights.
/// Errors     when a rule is made: UserError for a directory that is missing, no reward model, of several labels or without a
///            tokenizer. When it scores: UserError for messages that the chat template refuses and for a text without a token.
reward::ModelRuleMaker reward_models(const device::Arena& arena, int threads);

/// reward::make_rule with the rule `model`, for a program that does nothing but grade.
std::unique_ptr<reward::Rule> grading_rule(const std::string& spec);

}  // namespace tandem::serve
