// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan.h"

#include <algorithm>

namespace tandem::reshard {
namespace {

/// Deals what a rank takes from itself over its buckets, equally much to each.
class Copies {
 public:
  Copies(RankPlan& part, int64_t elements) : part_(part), elements_(elements) {}

  void add(int32_t tensor, const Box& box) {
    const int64_t count = box.num_elements(), buckets = std::ssize(part_.buckets);
    for (int64_t begin = 0; begin < count;) {
      const int64_t bucket = (done_ + begin) * buckets / elements_;
      const int64_t first_of_next = ((bucket + 1) * elements_ + buckets - 1) / buckets;
      const int64_t end = std::min(count, first_of_next - done_);
      for (Box& piece : boxes_of_range(box, begin, end))
        part_.buckets[static_cast<size_t>(bucket)].copies.push_back({tensor, std::move(piece)});
      begin = end;
    }
    done_ += count;
  }

 private:
  RankPlan& part_;
  const int64_t elements_;
  int64_t done_ = 0;
};

}  // namespace

const char* name_of(Mode mode) {
  constexpr const char* kNames[] = {"direct", "multicast", "gather_first"};
  return kNames[static_cast<size_t>(mode)];
}

RankPlan part_of(const Plan& plan, int rank) {
  RankPlan part;
  part.buckets.resize(static_cast<size_t>(plan.num_buckets));
  part.num_calls = static_cast<size_t>(plan.num_calls);
  part.overlap = plan.options.overlap, part.checksums = plan.options.checksums;
  std::vector<std::pair<int32_t, const Box*>> kept;
  int64_t elements = 0;
  for (int32_t tensor = 0; tensor < std::ssize(plan.kind_of); ++tensor)
    for (const Fragment& f : plan.fragments[static_cast<size_t>(plan.kind_of[static_cast<size_t>(tensor)])])
      if (std::ranges::binary_search(f.keepers, rank)) kept.emplace_back(tensor, &f.box), elements += f.box.num_elements();
  Copies copies(part, elements);
  for (const auto& [tensor, box] : kept) copies.add(tensor, *box);
  for (const Transfer& t : plan.transfers) {
    if (t.from != rank && t.to != rank) continue;
    RankPlan::Bucket& bucket = part.buckets[static_cast<size_t>(t.bucket)];
    const bool sends = t.from == rank;
    (sends ? bucket.sends : bucket.receives)
        .push_back({t.tensor, sends ? t.to : t.from, boxes_of_range(plan.fragment(t).box, t.begin, t.end), t.after >= 0});
  }
  for (RankPlan::Bucket& bucket : part.buckets)
    for (auto* moves : {&bucket.sends, &bucket.receives}) std::ranges::stable_sort(*moves, {}, &RankPlan::Move::peer);
  return part;
}

}  // namespace tandem::reshard
