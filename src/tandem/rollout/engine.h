// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rollout engine: continuous batching over a paged KV cache. Every step gives each running sequence one token, while
// prompts join in chunks.
//
//   admit -> waiting --(slot and blocks free)--> running --(stop, length)--> finished
//               ^------------(out of blocks: preempted, recomputed later)-----'

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "tandem/device/arena.h"
#include "tandem/model/decoder.h"
#include "tandem/monitor/recorder.h"
#include "tandem/rollout/block_pool.h"
#include "tandem/rollout/request.h"
#include "tandem/rollout/sampler.h"

namespace tandem::rollout {

struct EngineSetup {
  const model::Decoder& decoder;
  device::Arena& arena;
  monitor::Recorder& recorder;
  int64_t num_tokens;           ///< ids of the tokenizer; ids above it are padding and never drawn
  int64_t max_context_tokens;   ///< longest prompt plus response that will be asked for
};

/// Ownership  uses the decoder, the arena and the weights; owns the KV cache, which it makes with what is left of the arena when it first
///            gets weights, and counts the packed copy of the weights in the arena.
/// Threads    one per engine. The ranks of one tp and one pp group admit the same requests in the same order and get the same
///            tokens: TP ranks draw each from the gathered logits, the last pipeline stage tells the others.
/// Blocking   step() computes; it waits for TP and PP peers, and for the ranks that share experts.
/// Errors     UserError in admit for a prompt that cannot fit, and in switch_weights if the arena has no room for one sequence of the
///            longest context; InternalError when asked to generate without weights.
/// Read next  sampler.h (one draw), block_pool.h (memory), docs/design/rollout.md
class Engine {
 public:
  Engine(const Options& options, const EngineSetup& setup);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Generates with `parameters` from now on; running sequences go on under the new version, keeping their cache, but for
  /// those that have no token yet: they start over. The values must stay as they are until the next switch; a packed copy is
  /// made where the options ask for one. Collective over TP and PP peers; engines of several ranks switch
  /// together: weight_switch.h.
  void switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version);
  /// The engine has no version: it refuses to generate until the next switch_weights.
  void drop_weights();
  /// Gives back the KV cache and the packed copy, too, between two steps. Sequences that have begun are computed again after the next
  /// switch_weights; their tokens stay.
  void release_memory();
  /// Of the weights it generates with; none without them.
  std::optional<data::PolicyVersion> version() const { return parameters_ ? std::optional(version_) : std::nullopt; }

  void admit(Request request);
  /// True while a sequence runs or waits.
  bool running() const { return !running_.empty() || !waiting_.empty() || !preempted_.empty() || !forking_.empty(); }
  /// One token for every running sequence; without any it computes what peers need of the experts held here.
  void step();
  /// True while a sequence runs or waits here or on a rank that shares experts with this one: then each of them must step().
  /// Collective over those ranks, if there are any.
  bool must_step() const;
  /// Groups that ended since the last call, in the order they ended.
  std::vector<data::Group> finished();
  /// Forgets a group that is waiting or running; what it holds is freed.
  void cancel(data::GroupId group);
  /// Groups waiting or running, oldest first.
  std::vector<data::GroupId> unfinished() const;
  /// Those of them that have no token yet.
  std::vector<data::GroupId> without_token() const;

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_drawn() const { return num_drawn_; }  ///< tokens, since the start
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_free_blocks() const { return pool_ ? pool_->num_free() : 0; }
  int64_t num_blocks() const { return pool_ ? pool_->num_blocks() : 0; }

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  struct Plan;
  // A sequence that gets a token, and its logits: TP shards, `shard_stride` apart. Null where another pipeline stage has them.
  struct Row {
    Sequence* sequence;
    const float* logits;
    int64_t shard_size, shard_stride;
  };

  void make_cache();
  void count_packed(int64_t bytes);
  void start_waiting();
  SequencePtr make_sequence(const std::shared_ptr<Job>& job);
  void fork_samples(const std::shared_ptr<Job>& job, std::vector<Row>& rows);
  void release(Sequence& sequence);
  void release_prompt(Job& job);
  bool grow(Sequence& sequence, int64_t tokens);
  bool reclaim_prompt();
  Plan plan_step();
  void keep_routes(const Plan& plan, const at::Tensor& recorded_TX);
  void sample_rows(const Plan& plan, const at::Tensor& hidden);  // gathers logits over TP, then draw_rows
  void draw_rows(const std::vector<Row>& rows);                  // a token for each row; the last pipeline stage tells the others
  void append(Sequence& sequence, const Drawn& drawn);
  void retire_finished();
  std::vector<data::GroupId> ids_of_jobs(const std::function<bool(const Job&)>& wanted) const;

  Options options_;
  EngineSetup setup_;
  std::optional<model::ModelParameters> parameters_;
  data::PolicyVersion version_{};
  std::optional<BlockPool> pool_;
  int64_t packed_bytes_ = 0;
  std::deque<std::shared_ptr<Job>> waiting_;      // their prompts have not run
  std::vector<std::shared_ptr<Job>> forking_;     // their prompts have run, some samples wait for a slot
  std::deque<SequencePtr> preempted_;
  std::vector<SequencePtr> running_;
  std::vector<data::Group> finished_;
  int64_t next_order_ = 0, num_preemptions_ = 0, num_drawn_ = 0;
};

/// Blocks for `max_running` sequences of the longest context, bounded by kv_cache_mib.
int64_t num_kv_blocks(const Options& options, const CacheShape& shape, int64_t max_context_tokens);

}  // namespace tandem::rollout
