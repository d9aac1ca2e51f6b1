// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_bucket.h"

#include <algorithm>

namespace tandem::reshard {
namespace {

/// How full each bucket of each rank is.
class Loads {
 public:
  Loads(int num_ranks, int64_t bucket_bytes) : bucket_bytes_(bucket_bytes), ranks_(static_cast<size_t>(num_ranks)) {}

  /// The first bucket from `earliest` on in which both ranks have room for so many bytes. It is theirs then.
  int32_t place(int from, int to, int64_t bytes, int32_t earliest) {
    Rank &a = ranks_[static_cast<size_t>(from)], &b = ranks_[static_cast<size_t>(to)];
    int32_t bucket = std::max({earliest, a.first_open, b.first_open});
    while (at(a, bucket) + bytes > bucket_bytes_ || at(b, bucket) + bytes > bucket_bytes_) ++bucket;
    for (Rank* rank : {&a, &b}) {
      rank->bytes.resize(std::max(rank->bytes.size(), static_cast<size_t>(bucket) + 1));
      peak_ = std::max(peak_, rank->bytes[static_cast<size_t>(bucket)] += bytes);
      // Buckets that are nearly full are not looked at again, or the search would be quadratic.
      while (at(*rank, rank->first_open) > bucket_bytes_ - bucket_bytes_ / 16) ++rank->first_open;
    }
    return bucket;
  }

  int64_t peak() const { return peak_; }

 private:
  struct Rank {
    std::vector<int64_t> bytes;  // by bucket
    int32_t first_open = 0;
  };
  static int64_t at(const Rank& rank, int32_t bucket) {
    return bucket < std::ssize(rank.bytes) ? rank.bytes[static_cast<size_t>(bucket)] : 0;
  }

  const int64_t bucket_bytes_;
  std::vector<Rank> ranks_;
  int64_t peak_ = 0;
};

double modelled_s(const Plan& plan, int num_ranks) {
  struct Load {
    int64_t bucket = -1;
    int64_t near[2] = {}, far[2] = {};  // out, in
  };
  const int per_node = plan.options.ranks_per_node > 0 ? plan.options.ranks_per_node : num_ranks;
  const Links& links = plan.options.links;
  std::vector<Load> loads(static_cast<size_t>(num_ranks));
  double total_s = 0, longest_s = 0;
  int64_t bucket = -1;
  for (const Transfer& t : plan.transfers) {
    if (t.bucket != bucket) total_s += longest_s, longest_s = 0, bucket = t.bucket;
    for (const auto& [rank, way] : {std::pair(t.from, 0), std::pair(t.to, 1)}) {
      Load& load = loads[static_cast<size_t>(rank)];
      if (load.bucket != bucket) load = {bucket, {}, {}};
      (t.from / per_node == t.to / per_node ? load.near : load.far)[way] += (t.end - t.begin) * plan.options.element_bytes;
      const auto seconds = [](const int64_t (&way)[2], double speed) { return static_cast<double>(std::max(way[0], way[1])) / speed; };
      longest_s = std::max({longest_s, seconds(load.near, links.near_bytes_per_s), seconds(load.far, links.far_bytes_per_s)});
    }
  }
  return total_s + longest_s + static_cast<double>(plan.num_buckets) * links.call_s;
}

}  // namespace

void fill_buckets(Plan& plan, int num_ranks) {
  Loads loads(num_ranks, plan.options.bucket_bytes);
  for (Transfer& t : plan.transfers) {
    const int32_t earliest = t.after < 0 ? 0 : plan.transfers[static_cast<size_t>(t.after)].bucket + 1;
    t.bucket = loads.place(t.from, t.to, (t.end - t.begin) * plan.options.element_bytes, earliest);
    plan.num_buckets = std::max<int64_t>(plan.num_buckets, t.bucket + 1);
  }
  plan.stats.staging_peak_bytes = loads.peak();
  std::ranges::stable_sort(plan.transfers, {}, &Transfer::bucket);  // from here on `after` only says whether there is one
  plan.stats.modelled_s = modelled_s(plan, num_ranks);
}

std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  // Rows of the dimension d below a fixed index of those before it; what is not whole rows goes one dimension down.
  const auto take = [&](auto& self, Box rest, size_t d, int64_t from, int64_t to) -> void {
    if (from >= to) return;
    if (d == box.begin.size()) return boxes.push_back(std::move(rest));
    int64_t row = 1;
    for (size_t inner = d + 1; inner < box.begin.size(); ++inner) row *= box.extent(inner);
    const auto rows = [&](int64_t first, int64_t last) {
      Box part = rest;
      part.begin[d] = box.begin[d] + first, part.end[d] = box.begin[d] + last;
      return part;
    };
    const int64_t first_whole = (from + row - 1) / row, last_whole = to / row, first = from / row;
    if (first_whole > last_whole) return self(self, rows(first, first + 1), d + 1, from - first * row, to - first * row);
    self(self, rows(first, first + 1), d + 1, from - first * row, first_whole * row - first * row);
    if (first_whole < last_whole) boxes.push_back(rows(first_whole, last_whole));
    self(self, rows(last_whole, last_whole + 1), d + 1, 0, to - last_whole * row);
  };
  take(take, box, 0, begin, end);
  return boxes;
}

RankPlan part_of(const Plan& plan, int rank) {
  RankPlan part;
  for (int32_t tensor = 0; tensor < std::ssize(plan.kind_of); ++tensor)
    for (const Fragment& f : plan.fragments[static_cast<size_t>(plan.kind_of[static_cast<size_t>(tensor)])])
      if (std::ranges::binary_search(f.keepers, rank)) part.copies.push_back({tensor, f.box});
  part.buckets.resize(static_cast<size_t>(plan.num_buckets));
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
