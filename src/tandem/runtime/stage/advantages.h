// SPDX-License-Identifier: Apache-2.0
#pragma once
// What each token of a batch is worth: scores and rewards of tokens, compared within groups and whitened (algo/advantage.h).

#include "tandem/runtime/stage/stages.h"

namespace tandem::runtime {

/// Whether any token of the sample is trained on.
bool is_trainable(const data::Sample& sample, const Roles& roles);
/// Values of rows that this rank trains to those of all, on every rank that trains. Collective over those.
void share_rows(const StepData& step, const Roles& roles, TokenValues mine, TokenValues& all);

/// Fills step.advantages, the same on every rank, and those of the tokens of this rank's rows. Collective over the ranks that train.
/// Errors: UserError for a score that is not finite, or too large.
void advantages(StepData& step, const Roles& roles);

}  // namespace tandem::runtime
