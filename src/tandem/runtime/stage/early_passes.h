// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token passes before a batch is complete. Ranks that train and do not generate wait for a batch in the stage `rollout`; meanwhile they
// compute, of groups that are finished, what the stages `reference`, `old_logprob` and `values` will ask for. docs/design/free_mode.md

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "tandem/planner/schedule.h"
#include "tandem/runtime/sample/batch_rows.h"

namespace tandem::runtime {

/// By row, then response token.
using TokenValues = std::vector<std::vector<float>>;

/// The values that a stage computes of the rows of some groups (bare heads), in their order; empty but on the last pipeline stage.
using TokenPass = std::function<TokenValues(planner::StageKind stage, std::span<const data::Group> heads)>;

/// Ownership  uses ranks and bodies.
/// Threads    one per rank; all ranks make the same calls.
/// Errors     what the pass throws.
class EarlyPasses {
 public:
  /// `stages` of those three, in the order of the schedule. A pass has about `budget_tokens`. The same on all ranks.
  EarlyPasses(const policy::Ranks& ranks, BatchRows& bodies, std::vector<planner::StageKind> stages, int64_t budget_tokens)
      : ranks_(ranks), bodies_(bodies), stages_(std::move(stages)), budget_tokens_(budget_tokens),
        shares_(static_cast<size_t>(ranks.train_layout.dp)) {}

  /// One pass of each stage on each replica that trains, of some of `finished` (bare heads) that have had none yet. A group goes whole to the
  /// replica with the fewest tokens, and its bodies move there. Collective over the world.
  void work(std::span<const data::Group> finished, const TokenPass& pass);

  /// By row of `heads`: what was computed; nullopt where the stage is still to do it. Here on every rank that trains. Collective over those.
  std::vector<std::optional<std::vector<float>>> take(planner::StageKind stage, std::span<const data::Group> heads);
  /// How many of them have had their passes.
  int64_t num_done(std::span<const data::Group> heads) const;
  /// The weights change: what was computed no longer holds.
  void forget();
  /// Seconds of passes on this rank since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  struct Share {
    std::deque<data::Group> waiting;
    int64_t num_tokens = 0;  // of all it was given
  };

  int64_t num_tokens(const data::Group& head) const;
  bool is_done(data::GroupId group) const;

  const policy::Ranks& ranks_;
  BatchRows& bodies_;
  const std::vector<planner::StageKind> stages_;
  const int64_t budget_tokens_;
  std::vector<Share> shares_;                                     // by data-parallel rank of those that train
  std::map<data::GroupId, bool> known_;                           // whether it has had its passes
  std::map<planner::StageKind, std::map<data::SampleId, std::vector<float>>> values_;  // computed here
  double seconds_ = 0;
};

}  // namespace tandem::runtime
