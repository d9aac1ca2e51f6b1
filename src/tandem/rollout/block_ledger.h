// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who holds a block of the KV cache, and what is known to be in it. Pure: numbers of blocks, no tensors.
//
//   free, unknown --(try_allocate)--> held --(record)--> held, known --(release)--> free, known --(share)--> held, known
//        ^------------------------(try_allocate: the content is forgotten)--------------'

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/base/ids.h"

namespace tandem::rollout {

/// What a block holds: tokens of a sequence, computed under one version, after what the blocks before it hold.
struct BlockContent {
  PolicyVersion version{};
  uint64_t before = 0;               ///< name of the content of the block before it; 0 at the begin of a sequence
  std::span<const int32_t> tokens;   ///< from the block's first slot on
};

/// One step of a chain of hashes.
inline uint64_t mixed(uint64_t hash, uint64_t more) {
  hash = (hash ^ more) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

/// Contents are found by hash and then compared. Each gets a name that is never used again; equal version, name before and tokens
/// therefore mean equal tokens from the begin of the sequence on, whatever hashes collide.
///
/// Ownership  counts references; whoever has a block shared or allocated releases it once.
/// Threads    one.
/// Blocking   none.
/// Errors     InternalError for a release too many, and for sharing a free block of unknown content.
/// Read next  sequence_blocks.h (the blocks of one sequence)
class BlockLedger {
 public:
  explicit BlockLedger(int64_t num_blocks);
  BlockLedger(BlockLedger&&) = default;
  BlockLedger& operator=(BlockLedger&&) = default;

  /// The block that has been free for longest, with one reference, or -1 if none is free. Its content is forgotten.
  int32_t try_allocate();
  /// One more reference to a block that is held, or that is free with a known content.
  void share(int32_t block);
  void release(int32_t block);

  /// `content` is in `block` from now on. Returns the block that was known to hold the same before, else `block`.
  int32_t record(int32_t block, const BlockContent& content);
  /// The block with this content, or -1.
  int32_t find(const BlockContent& content) const;
  /// The block with the longest content that `content` begins with, or -1.
  int32_t find_longest(const BlockContent& content) const;
  /// The block's content is not known any more.
  void forget(int32_t block);
  /// No content is known any more.
  void forget_all();

  /// Of the block's content; 0 if it is unknown.
  uint64_t name(int32_t block) const { return at(block).name; }
  int64_t num_tokens(int32_t block) const { return static_cast<int64_t>(at(block).tokens.size()); }
  int64_t references(int32_t block) const { return at(block).references; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  struct Block {
    int64_t references = 0;
    std::list<int32_t>::iterator place;   // in free_ or held_
    uint64_t name = 0, hash = 0, before = 0;
    PolicyVersion version{};
    std::vector<int32_t> tokens;
  };

  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  int32_t known(uint64_t hash, const BlockContent& content) const;

  std::vector<Block> blocks_;
  std::list<int32_t> free_, held_;                       // free_: the longest free first
  std::unordered_multimap<uint64_t, int32_t> by_hash_;   // blocks of known content
  uint64_t next_name_ = 1;
};

}  // namespace tandem::rollout
