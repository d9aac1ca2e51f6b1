// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token passes before a batch is complete. Ranks that train and do not generate wait for a batch in the stage `rollout`; meanwhile they
// compute, of groups that are finished, what the stages `reference`, `old_logprob` and `values` will ask for. docs/design/free_mode.md

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tandem/data/decisions.h"
#include "tandem/planner/schedule.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/train/micro_batch.h"

namespace tandem::runtime {

/// By row, then response token.
using TokenValues = std::vector<std::vector<float>>;

/// Which stages compute early, in the order of the schedule, and the tokens of one of their passes.
struct EarlyStages {
  std::vector<planner::StageKind> stages;
  int64_t budget_tokens = 0;
  /// The rows of some groups (bare heads), whose bodies are here. May throw UserError.
  std::function<std::vector<train::Row>(std::span<const data::Group> heads)> rows;
  /// The values that a stage computes of rows; empty but on the last pipeline stage. Collective over the ranks that train.
  std::function<TokenValues(planner::StageKind stage, const std::vector<train::Row>& rows)> pass;
};

/// Ownership  uses ranks and bodies.
/// Threads    one per rank; all ranks make the same calls.
/// Errors     what a pass throws; StepFailed on all ranks that train for a row that some rank cannot make.
class EarlyPasses {
 public:
  EarlyPasses(const policy::Ranks& ranks, BatchRows& bodies, int64_t group_size, EarlyStages early);

  /// What the next pass has of `finished`, by data-parallel rank of those that train: whole groups, each for the rank with the fewest
  /// tokens so far. None where all have had their passes. The same on all ranks.
  data::EarlyGroups plan(std::span<const data::GroupId> finished) const;
  /// The bodies of these go to the ranks that will make their passes. Collective over the world.
  void lend(const data::EarlyGroups& groups);
  /// A pass of each stage of what was lent. Collective over the ranks that train.
  void make(const data::EarlyGroups& groups);

  /// By row of `heads`: what was computed; nullopt where the stage is still to do it. On the last pipeline stage of every replica; others
  /// have empty values. Collective over the ranks that train.
  std::vector<std::optional<std::vector<float>>> take(planner::StageKind stage, std::span<const data::Group> heads);
  /// How many of them have had their passes.
  int64_t num_done(std::span<const data::Group> heads) const;
  /// The weights change: what was computed no longer holds.
  void forget();
  /// Seconds of passes on this rank since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  int64_t num_tokens(data::GroupId group) const;

  const policy::Ranks& ranks_;
  BatchRows& bodies_;
  const int64_t group_size_;
  const EarlyStages early_;
  std::set<data::GroupId> done_;     // since the weights changed
  std::vector<int64_t> num_tokens_;  // of them, by data-parallel rank
  std::map<planner::StageKind, std::map<data::SampleId, std::vector<float>>> values_;  // computed here
  double seconds_ = 0;
};

}  // namespace tandem::runtime
