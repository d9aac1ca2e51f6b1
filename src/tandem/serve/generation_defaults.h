// SPDX-License-Identifier: Apache-2.0
#pragma once
// What generation_config.json of a model asks of those who generate, and is not done. Its ids and texts that end a response are
// followed by all (model/config.h); how to sample is up to the command or the recipe, for a policy's log-probabilities are those of its
// sampling.

#include <string>

#include "tandem/rollout/options.h"

namespace tandem::serve {

/// Warns once, in one line, of what DIR/generation_config.json says otherwise than `sampling`, and of what nothing here does, such as
/// suppressed tokens and penalties.
void say_not_followed(const std::string& dir, const rollout::Sampling& sampling);

}  // namespace tandem::serve
