// SPDX-License-Identifier: Apache-2.0
#pragma once
// Generation on one rank, in one of two ways that rollout_role.h does not tell apart: some tokens whenever it is asked to, or on a thread
// of its own (rollout/group/stream.h) under RunConfig::is_free.

#include <functional>
#include <optional>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/config/config.h"
#include "tandem/planner/homes.h"
#include "tandem/policy/ranks.h"
#include "tandem/generate/generator.h"
#include "tandem/rollout/engine.h"

namespace tandem::runtime {

/// Ownership  owns the engine and, where there is one, the stream.
/// Threads    one; all ranks of a replica make the same calls.
/// Errors     as rollout::Engine and rollout::Stream.
class Generation {
 public:
  /// Without `engine` this rank generates nothing. A stream follows `effects`, if there are any: those of the run that is replayed.
  Generation(const config::RunConfig& config, const policy::Ranks& ranks, const std::optional<rollout::EngineSetup>& engine,
             const generate::GenerateSetup& setup, std::optional<std::vector<data::Effect>> effects);

  /// Null where this rank does not generate. Not to be touched while a stream uses it: between pause() and resume().
  rollout::Engine* engine() { return engine_ ? &*engine_ : nullptr; }

  /// Of ranks that generate; else null.
  generate::Generator* generator() { return generator_ ? &*generator_ : nullptr; }
  using Ended = std::function<void(std::vector<data::Group>)>;
  /// Some tokens, at most those of `steps`, until `stop`; `ended` gets what has ended by then, after each. A stream has drawn them by
  /// itself: then this waits a moment for a group to end. Collective over `peers`, in which each replica has all its ranks.
  void advance(int64_t steps, comm::Group& peers, const StopRequested& stop, const Ended& ended);
  /// Of a stream: `ended` gets what has ended by now. Collective over `peers` as advance().
  void collect(comm::Group& peers, const Ended& ended);
  /// Whether there was something to generate in the last advance(), here or on a rank that shares experts.
  bool advanced() const { return advanced_; }
  bool running() const { return generator_ && generator_->running(); }
  rollout::EngineCounts counts() const { return generator_ ? generator_->counts() : rollout::EngineCounts{}; }
  /// generate::Generator::waiting
  std::vector<data::Waiting> waiting(data::PolicyVersion after) const {
    return generator_ ? generator_->waiting(after) : std::vector<data::Waiting>();
  }

  /// SampleSource::switch_weights. Collective over the world.
  void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version);
  /// Nothing is generated between them. Calls may repeat. A replay pauses before the same token if the pause `is_repeated`: the owner then
  /// does something to the engine that what it draws later depends on.
  void pause(bool is_repeated) { set(is_open_, true, is_repeated); }
  void resume() { set(is_open_, false, false); }
  /// A stream on ranks that train, too, generates between open() and close() alone. No-ops elsewhere.
  void open();
  void close();
  /// Of a stream that was closed: groups that had better go on elsewhere, by its own last times (planner/homes.h:Turns). The same
  /// on the ranks of a replica is for the caller to see to.
  std::vector<data::GroupId> better_moved() const;
  /// Of a stream that was closed: rollout::Stream::take_out. One that goes on is asked for none.
  std::vector<data::Group> take_out(const std::vector<data::GroupId>& groups);
  /// Of a stream: seconds since the start of the run in which it had nothing to generate.
  std::optional<double> idle_s() const;
  /// Of a stream: rollout::Stream::take_effects.
  std::vector<data::Effect> take_effects();

 private:
  void set(bool is_open, bool is_paused, bool is_repeated);
  int64_t num_ended_on_all(comm::Group& peers) const;

  const policy::Ranks& ranks_;
  const bool is_free_;  // on some rank there is a stream
  const bool has_episodes_;
  std::optional<rollout::Engine> engine_;          // where this rank generates
  std::optional<generate::Generator> generator_;
  rollout::Stream* stream_ = nullptr;              // of the generator, where it has one
  bool advanced_ = false, is_open_ = true, is_paused_ = false;
  planner::Turns turns_;            // of a stream that opens and closes
  int64_t drawn_at_open_ = 0;
};

}  // namespace tandem::runtime
