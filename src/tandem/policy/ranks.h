// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of a run as one of them sees them: who trains, who generates, and the groups they talk in.

#include <memory>
#include <string>

#include "tandem/base/error.h"
#include "tandem/comm/mesh.h"
#include "tandem/comm/scalar.h"
#include "tandem/config/layouts.h"
#include "tandem/model/decoder.h"

namespace tandem::policy {

/// Ownership  owns side group and meshes; uses the world.
/// Threads    one rank, one thread.
struct Ranks {
  /// Collective.
  Ranks(const config::Layouts& layouts, comm::Group& world);

  bool is_first() const { return world.rank() == 0; }
  /// Whether this rank trains, and generates.
  bool trains() const { return placement.train.has(world.rank()); }
  bool rolls_out() const { return placement.rollout.has(world.rank()); }
  bool only_generates() const { return rolls_out() && !trains(); }
  /// Its rank in the layout; only where it does.
  int train_rank() const { return world.rank() - placement.train.first; }
  int rollout_rank() const { return world.rank() - placement.rollout.first; }
  /// Its data-parallel index in training, or -1 where it does not train.
  int train_dp_rank() const { return train_layout.dp_rank_or_none(train_rank()); }
  model::RankPlace train_place() const { return model::place_in(train_layout, *train_mesh); }
  model::RankPlace rollout_place() const { return model::place_in(rollout_layout, *rollout_mesh); }
  /// model/layout.h:Layout::speaks
  bool speaks_for_train() const { return trains() && train_layout.speaks(train_rank()); }
  bool speaks_for_rollout() const { return rolls_out() && rollout_layout.speaks(rollout_rank()); }
  /// The ranks with the same work: all, or, where some never train, those that do or those that do not.
  comm::Group& side() const { return side_group ? *side_group : world; }
  /// Whether any rank was asked to stop. Collective.
  bool stop_agreed(const StopRequested& stop) const { return comm::any_of(world, stop && stop()); }
  /// To be asked at every token of a generation that only the rollout's TP, PP and EP peers share; they get the same answer.
  StopRequested stop_between_tokens(StopRequested stop) const;

  comm::Group& world;
  const planner::Placement placement;
  const model::Layout train_layout, rollout_layout;
  const std::unique_ptr<comm::Group> side_group;               ///< null: the world
  const std::unique_ptr<comm::Mesh> train_mesh, rollout_mesh;  ///< null on ranks that have no part in it
};

/// The layouts that train and generate, for people: "train dp2, rollout tp2".
std::string to_text(const Ranks& ranks);

}  // namespace tandem::policy
