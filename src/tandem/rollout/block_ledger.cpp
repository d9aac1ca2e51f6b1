// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/block_ledger.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::rollout {
namespace {

uint64_t begin_of(const BlockContent& content) { return mixed(static_cast<uint64_t>(value(content.version)) + 1, content.before); }
uint64_t hash_of(const BlockContent& content) {
  uint64_t hash = begin_of(content);
  for (int32_t token : content.tokens) hash = mixed(hash, static_cast<uint64_t>(token));
  return hash;
}

}  // namespace

BlockLedger::BlockLedger(int64_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  for (int64_t b = 0; b < num_blocks; ++b) blocks_[static_cast<size_t>(b)].place = free_.insert(free_.end(), static_cast<int32_t>(b));
}

int32_t BlockLedger::try_allocate() {
  if (free_.empty()) return -1;
  const int32_t block = free_.front();
  forget(block);
  Block& taken = blocks_[static_cast<size_t>(block)];
  taken.references = 1;
  held_.splice(held_.end(), free_, taken.place);
  return block;
}

void BlockLedger::share(int32_t block) {
  Block& shared = blocks_[static_cast<size_t>(block)];
  if (shared.references == 0) {
    TANDEM_CHECK(shared.name != 0, "block ", block, " is free and holds nothing");
    held_.splice(held_.end(), free_, shared.place);
  }
  ++shared.references;
}

void BlockLedger::release(int32_t block) {
  Block& released = blocks_[static_cast<size_t>(block)];
  TANDEM_CHECK(released.references > 0, "block ", block, " released twice");
  if (--released.references == 0) free_.splice(free_.end(), held_, released.place);
}

int32_t BlockLedger::record(int32_t block, const BlockContent& content) {
  const uint64_t hash = hash_of(content);
  if (const int32_t holder = known(hash, content); holder >= 0) return holder;
  forget(block);
  Block& told = blocks_[static_cast<size_t>(block)];
  told.name = next_name_++;
  told.hash = hash;
  told.before = content.before;
  told.version = content.version;
  told.tokens.assign(content.tokens.begin(), content.tokens.end());
  by_hash_.emplace(hash, block);
  return block;
}

int32_t BlockLedger::find(const BlockContent& content) const {
  return known(hash_of(content), content);
}

int32_t BlockLedger::find_longest(const BlockContent& content) const {
  std::vector<uint64_t> hashes = {begin_of(content)};
  for (int32_t token : content.tokens) hashes.push_back(mixed(hashes.back(), static_cast<uint64_t>(token)));
  for (size_t n = content.tokens.size(); n > 0; --n)
    if (const int32_t block = known(hashes[n], {content.version, content.before, content.tokens.first(n)}); block >= 0) return block;
  return -1;
}

int32_t BlockLedger::known(uint64_t hash, const BlockContent& content) const {
  for (auto [it, end] = by_hash_.equal_range(hash); it != end; ++it) {
    const Block& block = at(it->second);
    if (block.version == content.version && block.before == content.before && std::ranges::equal(block.tokens, content.tokens))
      return it->second;
  }
  return -1;
}

void BlockLedger::forget(int32_t block) {
  Block& told = blocks_[static_cast<size_t>(block)];
  if (told.name == 0) return;
  auto [it, end] = by_hash_.equal_range(told.hash);
  while (it != end && it->second != block) ++it;
  by_hash_.erase(it);
  told.name = 0;
  told.tokens.clear();
}

void BlockLedger::forget_all() {
  for (int32_t block = 0; block < num_blocks(); ++block) forget(block);
}

}  // namespace tandem::rollout
