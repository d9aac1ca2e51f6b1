// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rollout engine: continuous batching over a paged KV cache, one sequence at a time. Groups are made of sequences above it.
//
//   submit -> Scheduler::plan -> Runner::run -> RowSampler -> Scheduler::complete -> completed
//                   ^---------------- one step ------------------'
//
// On a device with graphs the next token of each sequence is queued before the host has the last one: the host prepares the next step
// while it runs.

#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/rollout/request.h"
#include "tandem/rollout/row_sampler.h"
#include "tandem/rollout/runner.h"
#include "tandem/rollout/scheduler.h"

namespace tandem::rollout {

struct EngineSetup {
  const model::Decoder& decoder;
  device::Arena& arena;
  int64_t num_tokens;           ///< ids of the tokenizer; ids above it are padding and never drawn
  int64_t max_context_tokens;   ///< longest prompt plus response that will be asked for
  std::function<void(int64_t tokens, double seconds)> stepped = {};  ///< hears of each step: tokens that it drew; may be empty
  bool logs_graphs = false;     ///< the log says how many graphs were captured, how long that took and what they hold
};

/// What an engine holds now, and what it has done since its start.
struct EngineCounts {
  int64_t drawn = 0;         ///< tokens; that of a sequence which waits for its first slot does not count yet
  int64_t preemptions = 0;   ///< sequences that gave their blocks back to others
  int64_t ran_ahead = 0;     ///< tokens whose logits were queued before the token was known here
  int64_t found_tokens = 0;  ///< of prompts, and of sequences that came back, found in the cache instead of computed
  int64_t free_blocks = 0, blocks = 0;  ///< of the KV cache; without one, `blocks` is 0
  int64_t block_tokens = 0;
};

/// Ownership  uses the decoder, the arena and the weights; owns the KV cache, which it makes with what is left of the arena when it first
///            gets weights.
/// Threads    one per engine. The ranks of one tp and one pp group submit the same requests in the same order and get the same
///            tokens: TP ranks draw each from the gathered logits, the last pipeline stage tells the others.
/// Blocking   step() computes; it waits for TP and PP peers, and for the ranks that share experts.
/// Errors     UserError in submit for a prompt that cannot fit, and in switch_weights if the arena has no room for one sequence of the
///            longest context; InternalError when asked to generate without weights.
/// Read next  group_assembly.h (groups), scheduler.h (who runs when), docs/design/rollout.md
class Engine {
 public:
  Engine(const Options& options, const EngineSetup& setup);

  /// Generates with `parameters` from now on; running sequences go on under the new version, keeping their cache, but for
  /// those that have no token yet: they start over. The values must stay as they are until the next switch; a packed copy is
  /// made where the options ask for one. Collective over TP and PP peers; engines of several ranks switch
  /// together: rollout::switch_weights.
  void switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version);
  /// The engine has no version: it refuses to generate until the next switch_weights.
  void drop_weights() { runner_.drop_weights(); }
  /// Gives back the KV cache and the packed copy, too, between two steps. Sequences that have begun are computed again after the next
  /// switch_weights; their tokens stay.
  void release_memory();
  /// Cached beginnings are found no more, so that what is generated next does not depend on what was. Nothing may be under way.
  void forget_cache() { scheduler_.forget_cache(); }
  /// Of the weights it generates with; none without them.
  std::optional<data::PolicyVersion> version() const { return runner_.has_weights() ? std::optional(version_) : std::nullopt; }

  /// Throws what submit() would.
  void check(const Request& request) const;
  SequenceId submit(Request request);
  /// Forgets a sequence that is waiting or running, or a completion that was not taken; what it holds is freed.
  void cancel(SequenceId sequence);
  /// What a sequence under way has of its answer, for Request::begun.
  const data::Sample& so_far(SequenceId sequence) const { return active_.at(sequence).sample; }
  /// True while a sequence runs or waits.
  bool running() const { return !scheduler_.empty(); }
  /// One token for every running sequence; without any it computes what peers need of the experts held here.
  void step();
  /// True while a sequence runs or waits here or on a rank that shares experts with this one: then each of them must step().
  /// Collective over those ranks, if there are any.
  bool must_step() const;
  /// Sequences that ended since the last call, in the order they ended.
  std::vector<Completion> completed() { return std::exchange(completed_, {}); }
  /// Of a sequence under way: the tokens of its prompt and its answer; whether it has a token that stays at a switch of weights.
  struct Progress {
    int64_t tokens;
    bool keeps_token;
  };
  Progress progress(SequenceId id) const { return {scheduler_.sequence(id).length(), scheduler_.sequence(id).keeps_token()}; }

  EngineCounts counts() const;

 private:
  // A sequence under way.
  struct Active {
    Request request;
    data::Sample sample;
    TokenListener listener;  // may be empty
  };

  void restart(const std::vector<SequenceId>& sequences);
  bool records_routes(const Plan& plan) const;
  void keep_routes(const Plan& plan, const at::Tensor& recorded_TX);
  std::vector<Outcome> draw(const Plan& plan, const at::Tensor& logits_SRV);
  std::optional<data::FinishReason> append(Active& active, const Drawn& drawn) const;

  const EngineSetup setup_;
  Scheduler scheduler_;
  Runner runner_;
  RowSampler sampler_;
  data::PolicyVersion version_{};
  std::unordered_map<SequenceId, Active> active_;
  std::vector<Completion> completed_;
  int64_t next_id_ = 0, num_drawn_ = 0;
  int64_t num_blocks_ = 0;  // of the KV cache when it was last here
};

/// Moves weights to where rollout has them. Gives those that it generates with from then on; null on a rank that does not generate.
using SendWeights = std::function<const model::ModelParameters*()>;

/// The engine has no version from before `send` writes the first byte of the new weights until every rank of the world has ended its own.
/// If any rank fails before, no engine of the world has a version, and none generates: what they hold is a mixture.
///
/// `engine` is null on a rank that does not generate.
/// Blocking   collective over the world.
/// Errors     what `send` throws on this rank; PeerError where it threw on another.
void switch_weights(Engine* engine, comm::Group& world, const SendWeights& send, data::PolicyVersion version);

}  // namespace tandem::rollout
