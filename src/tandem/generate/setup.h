// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all groups of a run, or of an evaluation, have in common. Made once, where the recipe is known; whoever generates gets it whole.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tandem/generate/response_text.h"
#include "tandem/generate/turns.h"
#include "tandem/model/layout.h"
#include "tandem/rollout/group/stream.h"

namespace tandem::generate {

struct GenerateSetup {
  rollout::Sampling sampling;
  int64_t group_size = 1;      ///< samples of a group
  uint64_t seed = 0;
  bool record_routes = false;  ///< fill data::Sample::routes
  bool with_greedy = false;    ///< fill data::Group::greedy
  ResponseEnds ends = {};
  rollout::MakeTokenListener make_listener = {};  ///< hears each turn, in place of the texts of `ends`
  std::function<int64_t(data::SampleId)> most_tokens = {};  ///< of a response; empty: sampling.max_new_tokens
  bool has_episodes = false;   ///< an environment answers, turn by turn
  std::shared_ptr<const Environment> environment = {};  ///< of those, on the rank that talks to it for all that draw together

  /// What the engine is asked for. `begun`: what another has drawn of its samples.
  rollout::GroupRequest request(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun = {}) const;
};

/// With whom a rank at this place draws the same tokens, and with whom it shares experts.
rollout::StreamPeers peers_of(const model::RankPlace& place, double deadline_s);

}  // namespace tandem::generate
