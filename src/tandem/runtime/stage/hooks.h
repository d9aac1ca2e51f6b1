// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions of the program that hosts a run, in place of what the recipe names.

#include <functional>
#include <span>
#include <vector>

#include "tandem/algo/advantage.h"
#include "tandem/reward/rule.h"
#include "tandem/train/objective.h"

namespace tandem::runtime {

/// Each may be empty.
/// Threads  reward: any number at once. advantage and loss: those of the ranks, some at once.
/// Errors   what they throw ends the run with the last step saved, as a failing reward does.
struct Hooks {
  /// A score for each answer of a group.
  std::function<std::vector<reward::Score>(std::span<const reward::Answer>)> reward;
  /// What each response of a batch is worth, in place of algo/advantage.h:compare_responses. Called once a step, on rank 0.
  std::function<std::vector<double>(const algo::Responses&)> advantage;
  /// In place of the policy loss. Called once an update on each replica.
  std::function<train::LossGradient(const train::LossColumns&)> loss;
};

}  // namespace tandem::runtime
