// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reward model of a fully colocated run: in the layout of training, on the device during its own stage alone.

#include <span>
#include <vector>

#include "tandem/model/model_on_rank.h"
#include "tandem/reward/rule.h"
#include "tandem/serve/scored_text.h"

namespace tandem::policy {

/// Ownership  owns its weights on device and host; uses the groups of the place.
/// Threads    one; score is collective over the ranks of the place that share sequences or experts.
/// Errors     UserError for a layout that the model cannot have.
class StagedReward {
 public:
  StagedReward(const reward::Options& options, const model::RankPlace& place, device::Arena& device, device::Arena& host);

  /// What score() reads of each answer. Errors: of serve/scored_text.h.
  std::vector<std::vector<int32_t>> tokens(std::span<const reward::Answer> answers) const;
  /// The score of each text, on the last pipeline stage; empty rows elsewhere. `budget_tokens` bounds a pass.
  std::vector<std::vector<float>> score(std::span<const std::vector<int32_t>> texts, int64_t budget_tokens) const;

  device::Swappable& memory() { return *model_.memory(); }

 private:
  model::kernel::Kernels kernels_;
  model::ModelOnRank model_;
  serve::ScoredText text_;
};

}  // namespace tandem::policy
