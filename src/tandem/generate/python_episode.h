// SPDX-License-Identifier: Apache-2.0
#pragma once
// Environments in Python: a class of the user with `reset` and `step`, in processes of its own (docs/guide/episodes.md).

#include "tandem/generate/episode.h"

namespace tandem::generate {

/// Starts a process, so that a file that does not load is found now; options.workers of them share the conversations. One that hangs is
/// ended, and the conversations it had begin in the next. Errors: UserError.
std::shared_ptr<const Environment> python_environment(const rollout::EpisodeOptions& options, const reward::Options& reward);

}  // namespace tandem::generate
