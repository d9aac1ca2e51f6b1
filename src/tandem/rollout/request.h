// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the engine is asked for, one sequence at a time, and what it gives.

#include <functional>
#include <optional>
#include <vector>

#include "tandem/data/sample.h"
#include "tandem/rollout/options.h"
#include "tandem/rollout/sequence_blocks.h"

namespace tandem::rollout {

/// Hears each token of one response as it is drawn. False ends the response with this token: a stop text has occurred, or whoever listens
/// has heard enough.
using TokenListener = std::function<bool(int32_t token)>;
/// Makes one for each response.
using MakeTokenListener = std::function<TokenListener()>;

/// One prompt to be answered once. A further turn is a request whose prompt begins with an earlier one and its answer.
struct Request {
  std::vector<int32_t> prompt;     ///< token ids
  int64_t row = 0;                 ///< of the prompt in its data set, for errors
  data::SampleId sample{};         ///< of the answer, and of its random stream
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;   ///< tokens that end a response; they belong to it
  MakeTokenListener make_listener;  ///< may be empty; called again if the sequence starts over
  bool record_routes = false;            ///< fill data::Sample::routes
  std::optional<data::Sample> begun = {};  ///< what another engine has drawn of the answer; it goes on behind that
};

/// The answer to a request.
struct Completion {
  SequenceId sequence{};
  data::Sample sample;
};

}  // namespace tandem::rollout
