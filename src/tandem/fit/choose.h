// SPDX-License-Identifier: Apache-2.0
#pragma once
// From what a probe measured to the sizes of passes and cache, as a pure function. docs/design/fit.md has the rules.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/config/config.h"

namespace tandem::fit {

/// Bytes that passes of so many tokens take beyond what a rank holds.
struct PassBytes {
  double fixed = 0, per_token = 0;
  int64_t at(int64_t tokens) const { return static_cast<int64_t>(fixed + per_token * static_cast<double>(tokens)); }
};

/// The line through two measured passes. It never falls: more tokens take no less.
PassBytes through(int64_t tokens, int64_t bytes, int64_t more_tokens, int64_t more_bytes);

/// Of the rank that needs the most.
struct Measured {
  int64_t budget_bytes = 0;        ///< what it may hold and take in all
  std::string budget_from;         ///< what bounds that
  int64_t held_bytes = 0;          ///< while a batch is trained or scored: weights, gradients, optimizer ...; without the KV cache
  int64_t held_rolling_bytes = 0;  ///< the same while it generates; where nothing leaves the device that is as much
  PassBytes train, score, decode;  ///< forward and backward; forward alone; a token for each running sequence
  PassBytes value_train, values;   ///< of a critic: forward and backward; forward alone
  int64_t kv_token_bytes = 0;      ///< of keys and values of one token
  int64_t block_tokens = 16;       ///< of the KV cache
  bool cache_leaves = false;       ///< no KV cache is there while a batch is trained or scored
  int64_t context_tokens = 0;      ///< longest prompt and its response
  int64_t eval_tokens = 0;         ///< the same of evaluations; 0 without any
  int64_t sequences = 0;           ///< that a rank generates for a step
  int64_t tokens = 0;              ///< most that a rank trains on in a step
  double train_tokens_s = 0, score_tokens_s = 0, value_train_tokens_s = 0, values_tokens_s = 0;  ///< tokens per second
};

/// What was decided of one option.
struct Decision {
  std::string option;
  int64_t was = 0, is = 0;
  std::string measured, because;
};

/// Passes have at most their default, halved until they fit beside the cache of some sequences; the cache what is left, at most what all
/// sequences of a step need. rollout.max_running is as many as the cache holds at full length. An option of `given` keeps its value.
/// Errors: UserError where one sequence of the longest context does not fit, naming what is held and what would take less.
std::vector<Decision> choose(const Measured& measured, const config::RunConfig& config, const std::vector<std::string>& given);

/// The value of an option among the decisions.
int64_t value_of(const std::vector<Decision>& decisions, const std::string& option);

/// The numbers of sequences that a probe decodes to choose rollout.max_running: `most`, and halves of it.
std::vector<int64_t> running_candidates(int64_t most);
/// The fewest of the candidates that decode at least 0.95 of the most tokens per second that any does.
int64_t quickest(const std::vector<int64_t>& candidates, const std::vector<double>& tokens_s);

/// The recipe with the decisions in it, as if its user had set them.
config::RunConfig with_decisions(config::RunConfig config, const std::vector<Decision>& decisions);
/// The options that choose() decides, as the recipe has them; those of a critic where it trains one.
std::vector<Decision> undecided(const config::RunConfig& config);

/// Lines of a table: option, value, what it was, measured, because.
std::vector<std::string> table(const std::vector<Decision>& decisions);

}  // namespace tandem::fit
