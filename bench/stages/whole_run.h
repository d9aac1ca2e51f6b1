// SPDX-License-Identifier: Apache-2.0
#pragma once
// What benchmarks of whole runs share: a run in a folder that goes away, of a model that any tokenizer of characters fits.

#include <nlohmann/json.hpp>

#include <vector>

#include "options.h"
#include "tandem/config/config.h"
#include "tandem/runtime/stage/stages.h"

namespace tandem::bench {

struct Shape {
  int64_t prompts = 4;      ///< per step
  int64_t gens = 8;         ///< responses per prompt
  int64_t prompt_len = 32;  ///< tokens
  int64_t new_tokens = 64;  ///< most of a response; without `most_tokens` each has as many
  int64_t steps = 1;
};

using Settings = std::vector<config::Setting>;

/// What a run left: its metrics, and what its ranks did (monitor/timeline_sink.h), one object a step.
struct RunLines {
  std::vector<nlohmann::json> metrics, timeline;
  config::RunConfig config;
};

/// Runs it, quietly, with these settings on top. About every third answer is right, for groups
/// need a spread of scores, or a step has no backward pass. Errors: as runtime::run_rl.
RunLines lines_of_run(const Computing& options, const Shape& shape, const Settings& settings, const runtime::Hooks& hooks = {});
/// The metrics alone.
std::vector<nlohmann::json> metrics_of_run(const Computing& options, const Shape& shape, const Settings& settings,
                                           const runtime::Hooks& hooks = {});

}  // namespace tandem::bench
