// SPDX-License-Identifier: Apache-2.0
#include "tandem/config/layouts.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/config/algorithm.h"

namespace tandem::config {
namespace {

model::Layout layout_of(const std::string& text, const std::string& option, int world) {
  model::Layout layout = model::parse_layout(text, option);
  if (text.empty()) layout.dp = world;
  if (layout.world() == world) return layout;
  const std::string what = join_text(to_string(layout), " has ", layout.world(), " ranks, the run has ", world);
  const std::string ranks = join_text(comm::mpi_launched() ? "mpirun -n " : "--ranks ", layout.world());
  if (world % layout.world() != 0) throw UserError(option, what, "start it with " + ranks);
  layout.dp *= world / layout.world();
  throw UserError(option, what, join_text("set ", to_string(layout), ", or start it with ", ranks));
}

// The training layout as a rollout can have it: context-parallel ranks generate other sequences, a stage's layers lie together.
model::Layout rollout_of(model::Layout train) {
  train.dp *= train.cp;
  train.cp = train.vpp = 1;
  return train;
}

// Ranks of a side whose layout is given; 0 where it is not.
int ranks_of(const std::string& text, const std::string& option) { return text.empty() ? 0 : model::parse_layout(text, option).world(); }

// A side without a layout takes what the other leaves, both without one half each.
std::pair<int, int> sides_of(const ParallelOptions& p, int world) {
  int train = ranks_of(p.train_layout, "parallel.train_layout"), rollout = ranks_of(p.rollout_layout, "parallel.rollout_layout");
  if (train == 0) train = rollout == 0 ? world - world / 2 : world - rollout;
  if (rollout == 0) rollout = world - train;
  if (world < 2 || train < 1 || rollout < 1 || train + rollout != world)
    throw UserError("parallel.placement",
                    join_text("split over ", world, world == 1 ? " rank: training takes " : " ranks: training takes ", std::max(train, 0),
                              ", rollout ", std::max(rollout, 0)),
                    "layouts whose ranks add up to those of the run, at least one each");
  return {train, rollout};
}

// All generate, some of them train.
std::pair<int, int> mixed_of(const ParallelOptions& p, int world) {
  const int given = ranks_of(p.train_layout, "parallel.train_layout"), train = given == 0 ? world - world / 2 : given;
  if (train >= world)
    throw UserError("parallel.placement",
                    join_text("mixed over ", world, world == 1 ? " rank, and training takes " : " ranks, and training takes ", train),
                    "a parallel.train_layout of fewer ranks than the run has");
  return {train, world};
}

// A replica either generates all the time or pauses while its ranks train, and none waits for another's experts.
void check_replicas(const planner::Placement& placement, const model::Layout& rollout) {
  if (rollout.shares_experts())
    throw UserError("parallel.rollout_layout",
                    to_string(rollout) + " has experts that replicas share, and under placement mixed some stand while others generate",
                    "an ep of at most tp, or another placement");
  for (int rank = 0; rank < rollout.world(); ++rank)
    for (int other = 0; other < rank; ++other)
      if (rollout.dp_rank(rank) == rollout.dp_rank(other) && placement.train.has(rank) != placement.train.has(other))
        throw UserError("parallel.rollout_layout",
                        join_text(to_string(rollout), " puts ranks ", other, " and ", rank,
                                  " into one replica, and only one of them trains"),
                        "replicas on ranks that all train or all do not");
}

}  // namespace

Layouts layouts_of(const RunConfig& c, int world) {
  const ParallelOptions& p = c.parallel;
  const planner::PlacementKind kind = planner::parse_placement(p.placement, "parallel.placement");
  const bool split = kind == planner::PlacementKind::kSplit, mixed = kind == planner::PlacementKind::kMixed;
  const auto [train_ranks, rollout_ranks] = split ? sides_of(p, world) : mixed ? mixed_of(p, world) : std::pair(world, world);
  const model::Layout train = layout_of(p.train_layout, "parallel.train_layout", train_ranks);
  const bool follows = p.rollout_layout.empty() && !split && !mixed;
  const model::Layout rollout = follows ? rollout_of(train) : layout_of(p.rollout_layout, "parallel.rollout_layout", rollout_ranks);
  // Sums over the ranks of a tensor-parallel group, and over those that cut an expert, have the order of that group.
  const bool same = train.tp == rollout.tp && train.expert_tp() == rollout.expert_tp();
  if (c.run.parity && !same)
    throw UserError("run.parity", join_text("training has ", to_string(train), ", rollout ", to_string(rollout)),
                    "the same tp, and for experts the same etp, in both");
  const planner::Placement placement = planner::placement_of(kind, train_ranks, rollout_ranks);
  if (mixed) check_replicas(placement, rollout);
  return {placement, train, rollout};
}

int planned_ranks(const RunConfig& config) {
  const ParallelOptions& p = config.parallel;
  const int train = ranks_of(p.train_layout, "parallel.train_layout"), rollout = ranks_of(p.rollout_layout, "parallel.rollout_layout");
  const int both = p.placement == "split" ? train + rollout : std::max(train, rollout);
  return p.ranks > 1 ? static_cast<int>(p.ranks) : std::max(both, 1);
}

planner::Schedule schedule_of(const RunConfig& c, const Layouts& layouts, bool replay) {
  const algo::Algorithm algorithm = algorithm_of(c);
  // Each round but the last replaces a group or more.
  const int64_t most_rounds = c.algo.filter_groups ? c.algo.max_filter_rounds * c.schedule.queue.groups_per_step : 1;
  return planner::schedule_for({.placement = layouts.placement,
                                .staleness = c.staleness(),
                                .replay = replay,
                                .reference = algorithm.needs_reference(),
                                .rewards_read_logprobs = algorithm.rewards_tokens(),
                                .old_logprob = old_logprobs_of(c, algorithm).recomputed,
                                .reward_stage = scores_in_stage(c),
                                .critic = algorithm.needs_critic(),
                                .start_is_reference = start_is_reference(c),
                                .most_rounds = most_rounds});
}

}  // namespace tandem::config
