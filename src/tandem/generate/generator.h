// SPDX-License-Identifier: Apache-2.0
#pragma once
// From prompts to responses on one engine, for whoever generates: an evaluation, a worker, the ranks of a run.
//
//   admit --> [engine, token by token] --> take_ended         step() draws the tokens, or a thread of the generator's own does

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "tandem/generate/setup.h"
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
/// Errors     as rollout::GroupAssembly, or rollout::Stream where it has a thread.
class Generator {
 public:
  Generator(GenerateSetup setup, rollout::Engine& engine, std::optional<OwnThread> thread = {});

  const GenerateSetup& setup() const { return setup_; }
  /// `begun`: what another has drawn of its samples.
  void admit(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun = {});
  void cancel(data::GroupId group);
  /// Without a thread: a token for each sequence. False, and nothing is drawn, where nothing is left to do, here or on a rank that shares
  /// experts; collective over those.
  bool step();
  /// Groups that ended since the last call, with their texts, in the order they ended. Of a thread the first `most` that ever ended: on
  /// ranks that draw together one may be ahead.
  std::vector<data::Group> take_ended(int64_t most = std::numeric_limits<int64_t>::max());
  /// Whether it has groups under way that get tokens, or that were not taken.
  bool running() const;
  rollout::EngineCounts counts() const;
  /// Groups without a token, and the version that their first will be of at least, once an update has led to `after`.
  std::vector<data::Waiting> waiting(data::PolicyVersion after) const;
  /// Null where step() draws.
  rollout::Stream* stream() { return stream_ ? &*stream_ : nullptr; }
  const rollout::Stream* stream() const { return stream_ ? &*stream_ : nullptr; }

 private:
  const GenerateSetup setup_;
  rollout::Engine& engine_;
  std::optional<rollout::GroupAssembly> groups_;
  std::optional<rollout::Stream> stream_;
};

}  // namespace tandem::generate
