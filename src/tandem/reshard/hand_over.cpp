// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/hand_over.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

constexpr int64_t kNone = -1;

/// The first, or the last, bucket that touches each chunk of a rank's weights.
class Bounds {
 public:
  Bounds(const WeightsMemory& side, bool last) : side_(side), last_(last), bound_(static_cast<size_t>(side.memory.num_chunks()), kNone) {
    const auto all = model::flat_order(model::family::parameters(side.table.config));
    entry_of_.assign(all.size(), nullptr);
    auto entry = side.table.entries.begin();
    for (size_t number = 0; number < all.size() && entry != side.table.entries.end(); ++number)
      if (entry->parameter.name == all[number].name) entry_of_[number] = &*entry++;
    TANDEM_CHECK(entry == side.table.entries.end(), "parameters in another order than the plan's");
  }

  void touch(int64_t bucket, int32_t number, const Box& box) {
    const auto [begin, end] = chunks_of(number, box);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      int64_t& bound = bound_[static_cast<size_t>(chunk)];
      if (bound == kNone || last_) bound = bucket;
    }
  }

  std::vector<std::vector<int64_t>> by_bucket(size_t num_buckets) const {
    std::vector<std::vector<int64_t>> chunks(std::max<size_t>(1, num_buckets));
    for (size_t chunk = 0; chunk < bound_.size(); ++chunk)
      chunks[static_cast<size_t>(std::max<int64_t>(0, bound_[chunk]))].push_back(static_cast<int64_t>(chunk));
    return chunks;
  }

 private:
  // A box lies between its first and its last element. Words of parameters kept in fp32 may be counted in another width.
  std::pair<int64_t, int64_t> chunks_of(int32_t number, const Box& box) const {
    const model::ParameterEntry* e = entry_of_[static_cast<size_t>(number)];
    TANDEM_CHECK(e, "the plan names tensor ", number, ", of which this rank holds nothing");
    if (e->parameter.in_float()) return side_.memory.chunks_of(e->offset, e->offset + e->num_elements);
    std::vector<int64_t> last = box.end;
    for (int64_t& index : last) --index;
    return side_.memory.chunks_of(e->offset + position_in(e->box, box.begin), e->offset + position_in(e->box, last) + 1);
  }

  const WeightsMemory& side_;
  const bool last_;
  std::vector<int64_t> bound_;                           // by chunk
  std::vector<const model::ParameterEntry*> entry_of_;  // by number of the tensor
};

}  // namespace

HandOver hand_over(const RankPlan& plan, const WeightsMemory& source, const WeightsMemory& target) {
  Bounds read(source, true), written(target, false);
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    const auto bucket = static_cast<int64_t>(i);
    for (const RankPlan::Copy& copy : plan.buckets[i].copies) {
      read.touch(bucket, copy.number, copy.box);
      written.touch(bucket, copy.number, copy.box);
    }
    for (const RankPlan::Move& move : plan.buckets[i].sends)
      for (const Box& box : move.boxes)
        if (!move.from_target) read.touch(bucket, move.number, box);
    for (const RankPlan::Move& move : plan.buckets[i].receives)
      for (const Box& box : move.boxes) written.touch(bucket, move.number, box);
  }
  return {written.by_bucket(plan.buckets.size()), read.by_bucket(plan.buckets.size())};
}

}  // namespace tandem::reshard
