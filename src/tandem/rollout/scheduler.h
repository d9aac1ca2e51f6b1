// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which sequences run in a step, with which blocks. Pure: sequences and blocks in, the plan of one step out.
//
//                          .--(a row of its prompt draws for it)--> ready --.
//   submit -> waiting -----+------------(slot and blocks free)--------------+-> running --(its caller says so)--> ended
//               ^---(out of blocks, new weights: it starts over)--'         |      |
//                                                          preempted <-(out of blocks)

#include <deque>
#include <iterator>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/rollout/options.h"
#include "tandem/rollout/sequence_blocks.h"

namespace tandem::rollout {

/// What is to be computed in one step. Copies come first, in their order; then all tokens run together; then rows are drawn from.
struct Plan {
  /// Tokens of one sequence that are not cached yet: ids [begin, begin + count), from `position` of the sequence on.
  struct Run {
    SequenceId sequence{};
    int64_t begin = 0, count = 0, position = 0;
    std::span<const int32_t> blocks;   ///< the scheduler's, until it is called again
    bool starts = false;               ///< the first run since the sequence got its slot
  };
  /// A sequence that gets a token from the logits of row `row`.
  struct Draw {
    SequenceId sequence{};
    int64_t row = 0;
  };

  std::vector<BlockCopy> copies;
  std::vector<int32_t> ids;
  std::vector<Run> runs;
  std::vector<int64_t> rows;   ///< into `ids`, rising: the tokens whose logits are wanted
  std::vector<Draw> draws;     ///< by row; the sequence that ran it comes first, then those that wait with the same tokens
  std::vector<SequenceId> restarted;   ///< drew a token that is dropped: they run their prompt again, later
};

/// What became of a draw.
struct Outcome {
  SequenceId sequence{};
  int32_t token = 0;
  bool ends = false;
};

/// What sequences are computing now, as marks of the beginnings of their prompts.
class Announced {
 public:
  /// Of a prompt: one mark for each of its full blocks, and one for the whole.
  static std::vector<uint64_t> marks_of(const std::vector<int32_t>& prompt, int64_t block_tokens, bool runs_all_tokens);
  void announce(Sequence& s, int64_t block_tokens);
  /// Without what is cached by now.
  void advance(Sequence& s, int64_t block_tokens);
  void withdraw(Sequence& s);
  /// Whether a twin of a waiting sequence runs: its logits will do for both.
  bool twin_of(const Sequence& s) const { return num_.contains(s.marks.back()); }
  /// Whether blocks that are worth waiting for come behind the `num_full` of its prompt that are there.
  bool blocks_of(const Sequence& s, int64_t num_full, int64_t block_tokens) const;

 private:
  void drop_until(Sequence& s, int64_t end);
  std::unordered_map<uint64_t, int64_t> num_;
};

/// Ownership  of the sequences and of who holds which block. The blocks' tensors and the drawing are its caller's.
/// Threads    one. The same calls give the same plans, so that the ranks of a tp and a pp group plan alike.
/// Blocking   none.
/// Errors     InternalError for what its caller must not ask: a sequence that no cache can hold, outcomes of another plan.
/// Read next  sequence_blocks.h (how blocks are found), tests/unit/rollout/scheduler_test.cpp (what always holds)
class Scheduler {
 public:
  /// With `takes_blocks_early` a sequence has the block of its next token a step before it runs, where there are blocks to spare.
  explicit Scheduler(const Options& options, bool takes_blocks_early = false);

  /// A cache of so many empty blocks; none may be held.
  void open(int64_t num_blocks);
  /// One that has begun elsewhere has a `response`: it goes on behind that, as if it had been preempted.
  void submit(SequenceId id, std::vector<int32_t> prompt, bool runs_all_tokens = false, std::span<const int32_t> response = {});
  /// Forgets a sequence; what it holds is freed.
  void cancel(SequenceId id);

  /// The next step. It must be completed before the next call.
  Plan plan();
  /// The step has run; one outcome for each draw of the plan, in its order.
  void complete(const Plan& plan, std::span<const Outcome> outcomes);

  /// What runs from now on is of `version`; running sequences keep their cache. Those whose tokens would not be of the version that
  /// computed them start over: they have no token yet, or one and never had a slot. Returns them.
  std::vector<SequenceId> switch_version(PolicyVersion version);
  /// What is cached is found no more. Nothing may be under way.
  void forget_cache();
  /// All blocks are freed, until the next open(). Sequences that have begun are computed again then; returns those that start over.
  std::vector<SequenceId> release_all();

  bool empty() const { return sequences_.empty(); }
  const Sequence& sequence(SequenceId id) const { return sequences_.at(id); }
  const SequenceBlocks& blocks() const { return blocks_; }
  struct Counts {
    int64_t running = 0;
    int64_t ready = 0;         ///< with a first token, waiting for their first slot
    int64_t preemptions = 0;   ///< since the start
  };
  Counts counts() const { return {std::ssize(running_), std::ssize(ready_), num_preemptions_}; }

 private:
  using Ids = std::vector<SequenceId>;
  void start_ready(std::vector<BlockCopy>& copies);
  void start_others();
  void start(Sequence& s, const SequenceBlocks::Found& found);
  std::vector<int64_t> make_room(Plan& plan);
  bool reclaim(Ids& restarted);
  void free_blocks(Sequence& s);
  void add_twins(Plan& plan) const;
  void share_prompts(const Plan& plan, std::span<const Outcome> outcomes);

  Options options_;
  const bool takes_blocks_early_;
  SequenceBlocks blocks_;
  Announced announced_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::deque<Sequence*> waiting_;     // without a token; they never had a slot
  std::deque<Sequence*> ready_;       // with a first token and the blocks of their prompt; they never had a slot
  std::deque<Sequence*> preempted_;   // without blocks; the first comes back first
  std::vector<Sequence*> running_;
  int64_t next_order_ = 0, num_preemptions_ = 0;
};

}  // namespace tandem::rollout
