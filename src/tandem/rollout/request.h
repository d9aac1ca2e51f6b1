// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the engine is asked for, one sequence at a time, and what it gives.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tandem/data/sample.h"
#include "tandem/rollout/options.h"
#include "tandem/rollout/sequence_blocks.h"

namespace tandem::rollout {

/// Watches the text of one response for stop strings; made per sample by whoever knows the tokenizer.
class StopMatcher {
 public:
  virtual ~StopMatcher() = default;
  /// True once a stop text has occurred in the response so far.
  virtual bool stops_after(int32_t token) = 0;
};
using StopMatcherFactory = std::function<std::unique_ptr<StopMatcher>()>;

/// One prompt to be answered once. A further turn is a request whose prompt begins with an earlier one and its answer.
struct Request {
  std::vector<int32_t> prompt;     ///< token ids
  int64_t row = 0;                 ///< of the prompt in its data set, for errors
  data::SampleId sample{};         ///< of the answer, and of its random stream
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;   ///< tokens that end a response; they belong to it
  StopMatcherFactory make_stop_matcher;  ///< may be empty; called again if the sequence starts over
  bool record_routes = false;            ///< fill data::Sample::routes
  std::optional<data::Sample> begun = {};  ///< what another engine has drawn of the answer; it goes on behind that
};

/// The answer to a request.
struct Completion {
  SequenceId sequence{};
  data::Sample sample;
};

}  // namespace tandem::rollout
