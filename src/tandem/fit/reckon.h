// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a recipe will hold in each stage, from the recipe and the model's config.json alone: no device, weights or prompts.
// docs/design/fit.md says what it leaves out.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/fit/held.h"
#include "tandem/model/config.h"
#include "tandem/planner/schedule.h"

namespace tandem::fit {

struct StageMemory {
  std::string stage;  ///< as the schedule calls it
  planner::StageKind kind;
  ByOwner device;     ///< with `activations`: what its passes take
};

struct Reckoned {
  std::vector<StageMemory> stages;
  ByOwner host;

  /// The stage that takes the most.
  const StageMemory& peak() const;
};

/// Of the first rank, which holds no less than another. Prompts are as long as data.max_prompt_tokens allows, responses as
/// rollout.max_new_tokens; the KV cache is as large as the recipe asks for.
/// Errors: UserError for a recipe without data.max_prompt_tokens, and for what has no formula: experts, latent attention, pp or cp, ranks
/// that train or generate alone, a critic, a reward model, workers, libtorch's kernels.
Reckoned reckoned(const config::RunConfig& config, const model::ModelConfig& model);

/// Errors: UserError naming the stage, its owners, the budget and what would take less, where a stage takes more than memory.device_mib or
/// the host's part more than memory.host_mib. A budget of 0 bounds nothing.
void check_budgets(const Reckoned& reckoned, const config::RunConfig& config);

/// A line a stage, and one for the host: MiB in all, then by owner. The last line says whether the most that a stage takes fits.
std::string to_text(const Reckoned& reckoned, const config::RunConfig& config);

}  // namespace tandem::fit
