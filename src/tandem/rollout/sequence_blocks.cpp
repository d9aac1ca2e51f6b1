// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/sequence_blocks.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::rollout {

void SequenceBlocks::open(int64_t num_blocks) {
  TANDEM_CHECK(ledger_.num_free() == ledger_.num_blocks(), ledger_.num_blocks() - ledger_.num_free(), " blocks are still held");
  ledger_ = BlockLedger(num_blocks);
}

void SequenceBlocks::set_version(PolicyVersion version) {
  if (version == version_) ledger_.forget_all();  // the same number may stand for other weights
  version_ = version;
}

SequenceBlocks::Found SequenceBlocks::find(std::span<const int32_t> tokens, int64_t limit) const {
  Found found;
  if (limit <= 0) return found;
  const auto size = static_cast<size_t>(block_tokens_);
  uint64_t before = 0;
  size_t at = 0;
  for (; at + size <= tokens.size(); at += size) {
    const int32_t block = ledger_.find({version_, before, tokens.subspan(at, size)});
    if (block < 0) break;
    found.blocks.push_back(block);
    before = ledger_.name(block);
  }
  found.num_full = static_cast<int64_t>(found.blocks.size());
  found.num_tokens = static_cast<int64_t>(at);
  const auto rest = tokens.subspan(at, std::min(size - 1, tokens.size() - at));
  if (const int32_t tail = ledger_.find_longest({version_, before, rest}); tail >= 0) {
    found.blocks.push_back(tail);
    found.num_tokens += ledger_.num_tokens(tail);
  }
  found.num_tokens = std::min(found.num_tokens, limit);
  found.blocks.resize(static_cast<size_t>(num_blocks_for(found.num_tokens)));
  return found;
}

SequenceBlocks::Found SequenceBlocks::find_for(const Sequence& s) const {
  Found found = find(s.tokens, s.runs_all_tokens ? std::min(s.num_run, s.length() - 1) : s.length() - 1);
  if (worth_taking(found.num_tokens, s.length())) return found;
  found.num_tokens = 0;
  found.blocks.clear();
  return found;
}

void SequenceBlocks::take(Sequence& s, const Found& found) {
  TANDEM_CHECK(s.blocks.empty(), "sequence ", value(s.id), " has blocks");
  for (int32_t block : found.blocks) ledger_.share(block);
  s.blocks = found.blocks;
  s.num_cached = found.num_tokens;
  s.computed_by = version_;
  s.num_recorded = s.num_cached / block_tokens_;
  s.last_name = s.num_recorded ? ledger_.name(s.blocks[static_cast<size_t>(s.num_recorded - 1)]) : 0;
  num_found_tokens_ += s.num_cached;
}

int64_t SequenceBlocks::num_needed(const Sequence& s, const Found& found) const {
  int64_t needed = num_blocks_for(s.length() + 1);
  const auto whole = static_cast<size_t>(found.num_tokens / block_tokens_);  // the rest of the last is written into
  for (size_t i = 0; i < whole; ++i) needed -= ledger_.references(found.blocks[i]) > 0;
  return needed;
}

bool SequenceBlocks::make_room(Sequence& s, int64_t num_tokens, std::vector<BlockCopy>& copies) {
  const auto first = static_cast<size_t>(s.num_cached / block_tokens_);
  const bool written = first < s.blocks.size();
  if (written && ledger_.references(s.blocks[first]) > 1) {
    const int32_t copy = ledger_.try_allocate();
    if (copy < 0) return false;
    copies.push_back({s.blocks[first], copy});
    ledger_.release(s.blocks[first]);
    s.blocks[first] = copy;
  } else if (written && ledger_.num_tokens(s.blocks[first]) > s.num_cached % block_tokens_) {
    ledger_.forget(s.blocks[first]);  // what is written over is found no more
  }
  while (static_cast<int64_t>(s.blocks.size()) < num_blocks_for(num_tokens)) {
    const int32_t block = ledger_.try_allocate();
    if (block < 0) return false;
    s.blocks.push_back(block);
  }
  return true;
}

void SequenceBlocks::record(Sequence& s, bool tail) {
  if (s.computed_by != version_) return;
  const std::span<const int32_t> tokens(s.tokens);
  const auto size = static_cast<size_t>(block_tokens_);
  for (; (s.num_recorded + 1) * block_tokens_ <= s.num_cached; ++s.num_recorded) {
    const auto i = static_cast<size_t>(s.num_recorded);
    const int32_t holder = ledger_.record(s.blocks[i], {version_, s.last_name, tokens.subspan(i * size, size)});
    if (holder != s.blocks[i]) {  // another sequence computed the same: one of the two is enough
      ledger_.share(holder);
      ledger_.release(s.blocks[i]);
      s.blocks[i] = holder;
    }
    s.last_name = ledger_.name(holder);
  }
  const auto i = static_cast<size_t>(s.num_recorded);
  const int64_t rest = s.num_cached - s.num_recorded * block_tokens_;
  if (!tail || rest == 0 || rest <= ledger_.num_tokens(s.blocks[i])) return;
  if (ledger_.references(s.blocks[i]) > 1) return;  // another holder may have fewer tokens, and is then the next to write there
  ledger_.record(s.blocks[i], {version_, s.last_name, tokens.subspan(i * size, static_cast<size_t>(rest))});
}

void SequenceBlocks::release(Sequence& s) {
  if (!s.blocks.empty()) record(s, true);
  for (; !s.blocks.empty(); s.blocks.pop_back()) ledger_.release(s.blocks.back());
  s.num_cached = s.num_recorded = 0;
  s.last_name = 0;
}

}  // namespace tandem::rollout
