// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/setup.h"

#include <utility>

namespace tandem::generate {

rollout::GroupRequest GenerateSetup::request(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun) const {
  rollout::GroupRequest request;
  request.group.id = group;
  request.group.prompt = std::move(prompt);
  request.group.samples = std::move(begun);
  request.num_samples = group_size;
  request.first_sample = value(data::sample_id(group, group_size, 0));
  request.sampling = sampling;
  request.seed = seed;
  request.stop_ids = ends.ids();
  request.make_listener = make_listener ? make_listener : ends.listeners();
  for (int64_t i = 0; most_tokens && i < group_size; ++i)
    request.max_new_tokens.push_back(most_tokens(data::sample_id(group, group_size, i)));
  request.record_routes = record_routes;
  request.with_greedy = with_greedy;
  return request;
}

rollout::StreamPeers peers_of(const model::RankPlace& place, double deadline_s) {
  rollout::StreamPeers peers{.deadline_s = deadline_s};
  for (comm::Group* group : {place.tp, place.pp})
    if (group) peers.alike.push_back(group);
  if (place.layout.shares_experts()) peers.experts = place.ep;
  return peers;
}

}  // namespace tandem::generate
