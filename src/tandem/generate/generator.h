// SPDX-License-Identifier: Apache-2.0
#pragma once
// From prompts to responses on one engine, for whoever generates: an evaluation, a worker, the ranks of a run.
//
//   admit --> [engine, token by token] --> take_ended         step() draws the tokens, or a thread of the generator's own does
//                  ^                |
//                  `-- environment <'                          where episodes have several turns (turns.h)

#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/generate/setup.h"
#include "tandem/generate/turns.h"
#include "tandem/rollout/group/group_assembly.h"
#include "tandem/rollout/group/stream.h"

namespace tandem::generate {

/// A thread that draws by itself (rollout/group/stream.h).
struct OwnThread {
  rollout::StreamPeers peers = {};
  std::optional<std::vector<data::Effect>> effects = {};  ///< of the run that is repeated
};

/// Ownership  uses the engine; while it lives nobody else takes the engine's completions.
/// Threads    one; ranks that draw together make the same calls.
/// Errors     as rollout::GroupAssembly, or rollout::Stream where it has a thread; PeerError of take_ended's peers.
class Generator {
 public:
  /// `peers`: where it has no thread (setup.h:peers_of).
  Generator(GenerateSetup setup, rollout::Engine& engine, rollout::StreamPeers peers = {}, std::optional<OwnThread> thread = {});

  const GenerateSetup& setup() const { return setup_; }
  /// `begun`: what another has drawn of its samples.
  void admit(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun = {});
  void cancel(data::GroupId group);
  /// Of a thread that is paused: rollout::Stream::take_out.
  std::vector<data::Group> take_out(const std::vector<data::GroupId>& groups);
  /// Without a thread: a token for each sequence. False, and nothing is drawn, where nothing is left to do, here or on a rank that shares
  /// experts; collective over those.
  bool step();
  /// Groups that ended since the last call, with their texts, in the order they ended. Of a thread the first `most` that ever ended: on
  /// ranks that draw together one may be ahead. With episodes it is collective over those that draw together, and where it has a thread
  /// over `peers`; groups whose environment goes on go on, and it waits a moment for one if nothing else is to be done.
  std::vector<data::Group> take_ended(int64_t most = std::numeric_limits<int64_t>::max(), comm::Group* peers = nullptr);
  /// Whether it has groups under way that get tokens, or that were not taken.
  bool running() const;
  /// Whether groups wait for an environment. The same on ranks that draw together.
  bool awaits_turns() const { return !out_.empty(); }
  /// Of the environment, on the rank that talks to it; null while nothing has failed.
  std::exception_ptr fault() const { return turns_ ? turns_->fault() : nullptr; }
  /// Where it has no thread, whether to go on: the same on ranks that draw together, and on those that share experts. Collective over the
  /// latter, where there are episodes. kFailed: fault() says why on one of the ranks.
  enum class Goes { kOver, kOn, kFailed };
  Goes goes_on() const;
  rollout::EngineCounts counts() const;
  /// Groups without a token, and the version that their first will be of at least, once an update has led to `after`.
  std::vector<data::Waiting> waiting(data::PolicyVersion after) const;
  /// Null where step() draws.
  rollout::Stream* stream() { return stream_ ? &*stream_ : nullptr; }
  const rollout::Stream* stream() const { return stream_ ? &*stream_ : nullptr; }

 private:
  void start(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun);
  std::vector<data::Group> hear_turns(comm::Group* peers);
  bool apply(const GroupTurn& turn, data::Group& group, std::vector<bool>& is_over) const;

  const GenerateSetup setup_;
  rollout::Engine& engine_;
  const rollout::StreamPeers peers_;
  std::optional<Turns> turns_;                           // on the rank that talks to the environment
  std::map<data::GroupId, data::Group> out_;             // with the environment
  std::map<data::GroupId, std::vector<bool>> is_over_;   // of groups that had a turn: which samples
  bool has_failed_ = false;                              // the environment: all that draw together have heard
  std::optional<rollout::GroupAssembly> groups_;
  std::optional<rollout::Stream> stream_;
};

}  // namespace tandem::generate
