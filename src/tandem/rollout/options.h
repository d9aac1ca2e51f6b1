// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "tandem/base/options.h"

namespace tandem::rollout {

struct Options {
  int64_t max_running = 128;
  int64_t kv_block_tokens = 0;
  int64_t kv_cache_mib = 1024;
  int64_t prefill_tokens = 2048;
  bool packed_weights = true;
  bool graphs = true;
};

inline void describe(OptionVisitor& field, Options& o) {
  field("max_running", o.max_running, "Sequences that decode at a time, per rank.", at_least(1));
  field("kv_block_tokens", o.kv_block_tokens,
        "Tokens held by one KV block; 0 takes what the device reads fastest: 16, and 256 on CUDA.", zero_or_power_of_two(16));
  field("kv_cache_mib", o.kv_cache_mib, "Most memory of the KV cache, per rank; less is taken when less is enough.", at_least(1));
  field("prefill_tokens", o.prefill_tokens, "Prompt tokens that join one decode step (chunked prefill).", at_least(1));
  field("packed_weights", o.packed_weights, "Keep a copy of the weights in the order decoding reads them fastest; never in parity mode.");
  field("graphs", o.graphs, "Capture decode steps as graphs and replay them, where the device has graphs.");
}

/// Conversations with an environment.
struct EpisodeOptions {
  std::string environment;
  int64_t workers = 4;
  double timeout_s = 60;
  int64_t attempts = 3;
};
inline void describe(OptionVisitor& field, EpisodeOptions& o) {
  field("environment", o.environment,
        "Who answers the policy, turn by turn, until the episode is done: FILE.py:CLASS with `reset` and `step` (docs/guide/episodes.md), "
        "or second_try. Empty: a response is one turn. rollout.max_new_tokens bounds all turns of both, and rollout.stop ends a turn.");
  field("workers", o.workers, "Threads that have turns of environments; each has a Python process of its own.", between(1, 1024));
  field("timeout_s", o.timeout_s, "Seconds that the environment of one episode may take for its set-up, all its turns and its score.",
        above(0));
  field("attempts", o.attempts,
        "How often an episode may begin. One that fails (an exception, a dead process, timeout_s) is no sample and begins anew; after so "
        "many failures the last step is saved and the run ends.",
        at_least(1));
}

/// How tokens are drawn. Part of each request, so that evaluation and training share an engine.
struct Sampling {
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  int64_t max_new_tokens = 256;
  bool ignore_eos = false;

  /// Whether some tokens are never drawn, however likely they are.
  bool filters() const { return top_p < 1 || top_k > 0; }
};

inline void describe(OptionVisitor& field, Sampling& o) {
  field("temperature", o.temperature, "Sampling temperature; 0 is greedy.", at_least(0.0));
  field("top_p", o.top_p, "Keep the fewest tokens whose probabilities reach this sum; 1 is off.", between(1e-6, 1.0));
  field("top_k", o.top_k, "Keep this many tokens; 0 is off.", at_least(0));
  field("max_new_tokens", o.max_new_tokens, "Longest response, in tokens.", at_least(1));
  field("ignore_eos", o.ignore_eos, "Go on to max_new_tokens whatever is sampled.");
}

}  // namespace tandem::rollout
