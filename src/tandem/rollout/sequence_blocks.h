// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of one sequence: found where their content is known, made room for, recorded, released. Pure.
//
// The prompt that a group shares, a sequence that resumes and a further turn are one thing here: tokens whose blocks are found.

#include <optional>
#include <span>
#include <vector>

#include "tandem/rollout/block_ledger.h"

namespace tandem::rollout {

/// Of one sequence in one engine; never used again.
enum class SequenceId : int64_t {};

/// What scheduling needs to know of a sequence.
struct Sequence {
  SequenceId id{};
  std::vector<int32_t> tokens;      ///< prompt, then response
  int64_t num_prompt = 0;
  bool runs_all_tokens = false;     ///< takes nothing from the cache but what ran for it, or for a twin in the same step
  int64_t num_cached = 0;           ///< tokens whose keys and values are in its blocks
  int64_t num_run = 0;              ///< the most that ever were
  std::vector<int32_t> blocks;
  std::optional<PolicyVersion> computed_by;  ///< of all that is cached; none: of several versions, or unknown
  int64_t num_recorded = 0;         ///< full blocks whose content is recorded
  uint64_t last_name = 0;           ///< of the content of the last of those
  int64_t order = -1;               ///< of its first slot, the youngest is preempted first; -1: it never had one
  bool starts = false;              ///< it has a slot and has not run since it got it
  bool ended = false;
  std::vector<uint64_t> marks;      ///< of its prompt's beginnings, by full blocks; the last mark is the whole prompt's
  int64_t first_announced = 0, end_announced = 0;   ///< marks of what it is computing

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_pending() const { return length() - num_cached; }
  bool has_token() const { return length() > num_prompt; }
  bool keeps_token() const { return has_token() && order >= 0; }   ///< at a switch of weights
};

struct BlockCopy {
  int32_t from, to;
  bool operator==(const BlockCopy&) const = default;
};

/// Ownership  a sequence holds one reference to each of its blocks.
/// Threads    one.
/// Blocking   none.
/// Errors     InternalError from open() if a block is still held.
/// Read next  scheduler.h (who gets blocks when)
class SequenceBlocks {
 public:
  struct Found {
    std::vector<int32_t> blocks;
    int64_t num_tokens = 0;   ///< of the sequence, in these blocks
    int64_t num_full = 0;     ///< full blocks that are known, even if the sequence may not use all of the last
  };

  explicit SequenceBlocks(int64_t block_tokens) : block_tokens_(block_tokens) {}

  /// Begins anew with so many empty blocks.
  void open(int64_t num_blocks);
  /// What is computed from now on is of this version, and only that is found.
  void set_version(PolicyVersion version);

  /// Which of the first `limit` of `tokens` are in the cache.
  Found find(std::span<const int32_t> tokens, int64_t limit) const;
  /// For a sequence that is to run: one token stays, which gives the logits. Nothing if that is not worth taking.
  Found find_for(const Sequence& s) const;
  /// A part of a sequence is worth taking from half of it on: one that runs from its begin attends to itself by matrix products.
  static bool worth_taking(int64_t num_found, int64_t length) { return 2 * num_found >= length; }
  /// A sequence without blocks takes what was found.
  void take(Sequence& s, const Found& found);
  /// Free blocks that a sequence which takes `found` will need for its tokens and one more.
  int64_t num_needed(const Sequence& s, const Found& found) const;

  /// Room for `num_tokens` in all, and blocks of its own to write into behind those that are cached: a shared one is copied first.
  /// False if there are too few free blocks; what it got by then stays.
  bool make_room(Sequence& s, int64_t num_tokens, std::vector<BlockCopy>& copies);
  /// Full blocks are found from now on; with `tail` the partly filled one, too. Nothing where several versions computed.
  void record(Sequence& s, bool tail);
  /// Its blocks stay findable until they are allocated again; its last goes first.
  void release(Sequence& s);

  const BlockLedger& ledger() const { return ledger_; }
  int64_t num_free() const { return ledger_.num_free(); }
  int64_t block_tokens() const { return block_tokens_; }
  PolicyVersion version() const { return version_; }
  int64_t num_found_tokens() const { return num_found_tokens_; }   ///< taken instead of computed, since the start

 private:
  int64_t num_blocks_for(int64_t num_tokens) const { return (num_tokens + block_tokens_ - 1) / block_tokens_; }

  int64_t block_tokens_;
  PolicyVersion version_{};
  BlockLedger ledger_{0};
  int64_t num_found_tokens_ = 0;
};

}  // namespace tandem::rollout
