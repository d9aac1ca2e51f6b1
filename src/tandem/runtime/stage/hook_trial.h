// SPDX-License-Identifier: Apache-2.0
#pragma once
// A made-up batch for functions of the host, before a run makes anything: one that fails at once ends the command at once.

#include "tandem/config/config.h"
#include "tandem/runtime/stage/stages.h"

namespace tandem::runtime {

/// Calls the loss and the advantage function, where there are any, as the first update of a run would: with one mini-batch, and with one
/// batch. Responses have 2 to 4 tokens; logprobs, old and behavior are alike, as on fresh samples; scores are 0 and 1 in turns. What the
/// functions return is thrown away. serve/reward_trial.h does this for rewards.
/// Errors: UserError with the words of the function's; of a number that is not finite only a warning.
void try_hooks(const Hooks& hooks, const config::RunConfig& config);

}  // namespace tandem::runtime
