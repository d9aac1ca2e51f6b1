// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/ranks.h"

namespace tandem::policy {
namespace {

std::unique_ptr<comm::Mesh> mesh_of(bool takes_part, comm::Group& group, const model::Layout& layout) {
  return takes_part ? std::make_unique<comm::Mesh>(group, model::mesh_sizes(layout)) : nullptr;
}

}  // namespace

Ranks::Ranks(const config::Layouts& layouts, comm::Group& ranks)
    : world(ranks),
      placement(layouts.placement),
      train_layout(layouts.train),
      rollout_layout(layouts.rollout),
      side_group(placement.has_sides() ? ranks.split(trains() ? 0 : 1, trains() ? "train" : "rollout") : nullptr),
      train_mesh(mesh_of(trains(), side(), train_layout)),
      rollout_mesh(mesh_of(rolls_out(), placement.rollout.count == ranks.size() ? ranks : side(), rollout_layout)) {}

StopRequested Ranks::stop_between_tokens(StopRequested stop) const {
  std::vector<comm::Group*> peers;
  if (!rolls_out()) return stop;
  const model::RankPlace place = rollout_place();
  for (comm::Group* group : {place.tp, place.pp, rollout_layout.shares_experts() ? place.ep : nullptr})
    if (group) peers.push_back(group);
  if (peers.empty()) return stop;
  // Peers must leave at the same token; asking costs a message, so not at each.
  constexpr int64_t kTokens = 16;
  return [stop = std::move(stop), peers, asked = int64_t{0}]() mutable {
    if (++asked % kTokens != 0) return false;
    bool any = stop && stop();
    for (comm::Group* group : peers) any = comm::any_of(*group, any);
    return any;
  };
}

std::string to_text(const Ranks& ranks) {
  return join_text("train ", model::to_string(ranks.train_layout), ", rollout ", model::to_string(ranks.rollout_layout));
}

}  // namespace tandem::policy
