// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every role of one rank shares: its peers, its memory, the kernels and where numbers go.

#include <functional>
#include <memory>
#include <string>

#include "tandem/comm/mesh.h"
#include "tandem/comm/scalar.h"
#include "tandem/device/arena.h"
#include "tandem/model/kernel/gemm.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/products.h"
#include "tandem/monitor/recorder.h"
#include "tandem/planner/placement.h"
#include "tandem/runtime/recipe/config.h"
#include "tandem/runtime/session/evaluation.h"

namespace tandem::runtime {

/// Who does what on how many ranks.
struct Layouts {
  planner::Placement placement;
  model::Layout train, rollout;
};
/// Of a run of that many ranks. Errors: UserError naming the option.
Layouts layouts_of(const RunConfig& config, int world);

/// Ownership  owns meshes, arenas and recorder; uses the world.
/// Threads    one rank, one thread.
struct RankContext {
  /// `known`: what a warm start computed with; the run keeps it unless options say other. Collective.
  RankContext(const RunConfig& config, comm::Group& world, StopRequested stop, const model::Products& known = {})
      : RankContext(config, world, std::move(stop), kept(known, config, world), layouts_of(config, world.size())) {}

  /// Whether this rank trains, and generates.
  bool trains() const { return placement.train.has(world.rank()); }
  bool rolls_out() const { return placement.rollout.has(world.rank()); }
  /// Its rank in the layout; only where it does.
  int train_rank() const { return world.rank() - placement.train.first; }
  int rollout_rank() const { return world.rank() - placement.rollout.first; }
  model::RankPlace train_place() { return model::place_in(train_layout, *train_mesh); }
  model::RankPlace rollout_place() { return model::place_in(rollout_layout, *rollout_mesh); }
  bool is_first() const { return world.rank() == 0; }
  /// Whether it is true on any rank; the same answer on all. Collective.
  bool any(bool mine) { return comm::any_of(world, mine); }
  /// Whether any rank was asked to stop. Collective.
  bool stop_agreed() { return any(stop_requested && stop_requested()); }
  /// To be asked at every token of a generation that only the rollout's TP, PP and EP peers share; they get the same answer.
  StopRequested stop_between_tokens();
  /// model/layout.h:Layout::speaks
  bool speaks_for_rollout() const { return rolls_out() && rollout_layout.speaks(rollout_rank()); }
  bool speaks_for_train() const { return trains() && train_layout.speaks(train_rank()); }
  /// Of weights on the way to the rollout: the narrower.
  c10::ScalarType switch_dtype() const { return gemm.dtype() == at::kBFloat16 ? gemm.dtype() : rollout_gemm.dtype(); }
  /// The ranks with the same work: all, or with a split placement those that train or those that generate.
  comm::Group& side() { return side_group ? *side_group : world; }

  model::Products products() const;
  /// What they are, and the options that give them to another run.
  std::string products_text() const;
  /// Those of a checkpoint replace what was measured, not what options say. Collective.
  void adopt_products(const model::Products& products);

  const RunConfig& config;
  comm::Group& world;
  planner::Placement placement;
  model::Layout train_layout, rollout_layout;
  std::unique_ptr<comm::Group> side_group;  ///< null: the world
  std::unique_ptr<comm::Mesh> train_mesh, rollout_mesh;  ///< null on ranks that have no part in it
  device::Arena device, host;
  monitor::Recorder recorder;
  model::kernel::Gemm gemm, rollout_gemm;  ///< of training, and of the rollout's dtype
  StopRequested stop_requested;
  bool told_of_budget = false;  ///< that passes took more than memory.device_mib

 private:
  /// The products if all ranks compute rows as they were computed, else none. Collective.
  static model::Products kept(const model::Products& products, const RunConfig& config, comm::Group& world);
  RankContext(const RunConfig& config, comm::Group& world, StopRequested stop, const model::Products& known, const Layouts& layouts);
};

/// Bytes of memory by owner, as metrics; with those of the stages and the switch, the most of any rank. Collective.
void record_memory(RankContext& context);

}  // namespace tandem::runtime
