// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one rank of a session keeps between calls.

#include <memory>
#include <optional>

#include "tandem/policy/actor.h"
#include "tandem/rollout/engine.h"
#include "tandem/runtime/folder/run_state.h"

namespace tandem::session {

/// Threads  one per rank; collective.
struct OnRank {
  OnRank(const config::RunConfig& config, comm::Group& world);
  OnRank(const OnRank&) = delete;
  OnRank& operator=(const OnRank&) = delete;

  /// An engine with the weights of `version`, for prompts and answers of together at most `context` tokens; null where this rank does not
  /// generate. One for less context makes room for a new one.
  rollout::Engine* engine_for(int64_t context, int64_t num_tokens, data::PolicyVersion version);

  /// The next one is new.
  void drop_engine();
  /// What was recorded: a session has no sinks.
  void forget_numbers() { (void)rank.recorder.commit_step(0); }

  const config::RunConfig& config;
  policy::Rank rank;
  policy::Actor actor;
  runtime::StateFiles files;
  std::unique_ptr<rollout::Engine> engine;
  int64_t context = 0;                          ///< that the engine was made for
  std::optional<data::PolicyVersion> version;   ///< of the weights that generate
};

}  // namespace tandem::session
