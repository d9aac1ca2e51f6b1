// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the engine is asked for, and what a running sequence is.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tandem/base/rng.h"
#include "tandem/data/sample.h"
#include "tandem/rollout/options.h"

namespace tandem::rollout {

/// Watches the text of one response for stop strings; made per sample by whoever knows the tokenizer.
class StopMatcher {
 public:
  virtual ~StopMatcher() = default;
  /// True once a stop text has occurred in the response so far.
  virtual bool stops_after(int32_t token) = 0;
};
using StopMatcherFactory = std::function<std::unique_ptr<StopMatcher>()>;

/// One prompt to be answered `num_samples` times.
struct Request {
  data::Group group;               ///< id and prompt with its token ids; samples are filled by the engine
  int64_t num_samples = 1;
  int64_t first_sample = 0;        ///< id of sample 0, and of its random stream
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;   ///< tokens that end a response; they belong to it
  StopMatcherFactory make_stop_matcher;  ///< may be empty
  std::vector<int64_t> max_new_tokens;   ///< per sample; empty means sampling.max_new_tokens for all
  bool record_routes = false;            ///< fill data::Sample::routes
};

/// A request under way.
struct Job {
  Request request;
  int64_t num_unstarted = 0;       ///< samples that have not forked from the prompt yet
  int64_t num_unfinished = 0;
  std::vector<int32_t> prompt_blocks;    ///< references held for those samples
  std::vector<float> prompt_logits;      ///< after the last prompt token; empty until the prompt has run
  std::vector<int16_t> prompt_routes;    ///< where they are recorded
};

struct Sequence {
  std::shared_ptr<Job> job;        // shared by the samples of one group
  int64_t index = 0;               ///< sample in the group
  std::vector<int32_t> tokens;     ///< prompt, then response
  int64_t num_prompt = 0;
  int64_t num_cached = 0;          ///< tokens whose keys and values are in the cache
  std::vector<int32_t> blocks;
  std::vector<int16_t> routes;     ///< of the tokens that have run, where they are recorded
  std::unique_ptr<StopMatcher> stop;
  int64_t order = 0;               ///< of admission; the youngest is preempted first

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_pending() const { return length() - num_cached; }
  data::Sample& sample() const { return job->request.group.samples[static_cast<size_t>(index)]; }
  int64_t max_new_tokens() const {
    const auto& each = job->request.max_new_tokens;
    return each.empty() ? job->request.sampling.max_new_tokens : each[static_cast<size_t>(index)];
  }
};

}  // namespace tandem::rollout
