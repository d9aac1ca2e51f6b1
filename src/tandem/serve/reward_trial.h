// SPDX-License-Identifier: Apache-2.0
#pragma once
// One made-up group for a reward, before a run makes anything: a reward that cannot score ends the command at once.

#include <cstdint>
#include <string>

#include "tandem/base/error.h"
#include "tandem/data/options.h"
#include "tandem/generate/turns.h"
#include "tandem/reward/options.h"

namespace tandem::serve {

/// What is tried, and on what.
struct RewardTrial {
  const reward::Options& reward;
  const data::Options& data;
  std::string model_dir;         ///< whose tokenizer and chat template render messages; "": messages are not tried
  int64_t group_size = 1;
  double timeout_s = 3600;       ///< for one group
};

/// Answers, `group_size` of each: the right answer of the prompt, if it has one, and a made-up text, in turns.
inline constexpr const char* kMadeUpAnswer = "A made-up answer, which tries the reward before the run.";

/// Makes the reward, has it score a group of the first row of each training set, and ends it. Its functions run in processes of their
/// own. A rule `model` counts as one that scores 0: no weights are read.
/// Errors: UserError or PeerError naming the row for what fails, only a warning under reward.on_error zero; UserError as the rules and
/// the data sets give; Interrupted if asked to stop.
void try_reward(const RewardTrial& trial, const StopRequested& stop);

/// Begins an episode on the first row of each training set, and lets it answer once. Errors: UserError or PeerError naming the row.
void try_environment(const RewardTrial& trial, const generate::Environment& environment);

}  // namespace tandem::serve
