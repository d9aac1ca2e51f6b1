// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/context.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <type_traits>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {
namespace {

model::Layout layout_of(const std::string& text, const std::string& option, int world) {
  model::Layout layout = model::parse_layout(text, option);
  if (text.empty()) layout.dp = world;
  if (layout.world() == world) return layout;
  const std::string what = join_text(to_string(layout), " has ", layout.world(), " ranks, the run has ", world);
  const std::string ranks = join_text("--ranks ", layout.world());
  if (world % layout.world() != 0) throw UserError(option, what, ranks);
  layout.dp *= world / layout.world();
  throw UserError(option, what, join_text(to_string(layout), ", or ", ranks));
  return layout;
}

// The training layout as a rollout can have it: context-parallel ranks generate other sequences, a stage's layers lie together.
model::Layout rollout_of(model::Layout train) {
  train.dp *= train.cp;
  train.cp = train.vpp = 1;
  return train;
}

// Rank 0 measures for all: ranks that compute the same tokens must choose the same experts.
model::kernel::Gemm agreed_products(c10::ScalarType dtype, bool parity, comm::Group& world) {
  using model::kernel::Gemm, model::kernel::GemmChoice;
  if (parity || world.size() == 1) return {dtype, parity};
  GemmChoice choice;
  static_assert(std::is_trivially_copyable_v<GemmChoice>);
  if (world.rank() == 0) choice = Gemm(dtype, parity).choice();
  at::Tensor bytes = at::zeros({static_cast<int64_t>(sizeof choice)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &choice, sizeof choice);
  world.broadcast(bytes, 0);
  std::memcpy(&choice, bytes.data_ptr(), sizeof choice);
  return {dtype, choice};
}

}  // namespace

std::pair<model::Layout, model::Layout> layouts_of(const RunConfig& c, int world) {
  const model::Layout train = layout_of(c.parallel.train_layout, "parallel.train_layout", world);
  if (c.parallel.rollout_layout.empty()) return {train, rollout_of(train)};
  return {train, layout_of(c.parallel.rollout_layout, "parallel.rollout_layout", world)};
}

RankContext::RankContext(const RunConfig& c, comm::Group& ranks, StopRequested stop)
    : config(c),
      world(ranks),
      train_layout(layouts_of(c, ranks.size()).first),
      rollout_layout(layouts_of(c, ranks.size()).second),
      train_mesh(ranks, model::mesh_sizes(train_layout)),
      rollout_mesh(ranks, model::mesh_sizes(rollout_layout)),
      device("device", c.memory.device_mib << 20),
      host("host", c.memory.host_mib << 20),
      gemm(agreed_products(dtype_of(c.model.dtype, "model.dtype"), c.run.parity, ranks)),
      stop_requested(std::move(stop)) {
  // Sums over the ranks of a tensor-parallel group, and over those that cut an expert, have the order of that group.
  const bool same = train_layout.tp == rollout_layout.tp && train_layout.expert_tp() == rollout_layout.expert_tp();
  if (c.run.parity && !same)
    throw UserError("run.parity", join_text("training has ", to_string(train_layout), ", rollout ", to_string(rollout_layout)),
                    "the same tp, and for experts the same etp, in both");
}

StopRequested RankContext::stop_between_tokens() {
  std::vector<comm::Group*> peers;
  const model::RankPlace place = rollout_place();
  for (comm::Group* group : {place.tp, place.pp, rollout_layout.shares_experts() ? place.ep : nullptr})
    if (group) peers.push_back(group);
  if (peers.empty()) return stop_requested;
  // Peers must leave at the same token; asking costs a message, so not at each.
  constexpr int64_t kTokens = 16;
  return [this, peers, asked = int64_t{0}]() mutable {
    if (++asked % kTokens != 0) return false;
    bool any = stop_requested && stop_requested();
    for (comm::Group* group : peers) any = any_of(*group, any);
    return any;
  };
}

bool any_of(comm::Group& group, bool mine) {
  if (group.size() == 1) return mine;
  at::Tensor any = at::zeros({1}, at::kLong).fill_(mine ? 1 : 0);
  group.all_reduce(any, comm::ReduceOp::kMax);
  return any.data_ptr<int64_t>()[0] != 0;
}

void record_memory(RankContext& c) {
  for (const auto& [owner, bytes] : c.device.by_owner())
    if (owner != train::kActivations) c.recorder.set("memory/" + owner + "_bytes", static_cast<double>(bytes));
  for (const auto& [owner, bytes] : c.host.by_owner()) c.recorder.set("memory/host_" + owner + "_bytes", static_cast<double>(bytes));
  c.recorder.set("memory/peak_bytes", static_cast<double>(c.device.peak_bytes()));
}

}  // namespace tandem::runtime
