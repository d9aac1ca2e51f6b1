// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_bucket.h"

#include <algorithm>
#include <numeric>

namespace tandem::reshard {
namespace {

/// Receivers were planned one tensor after the other; taken in turns, they share the buckets. A transfer follows the one it waits for.
std::vector<int32_t> in_turns(const std::vector<Transfer>& transfers, int num_ranks) {
  std::vector<int32_t> turns(static_cast<size_t>(num_ranks), 0), turn(transfers.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    turn[i] = turns[static_cast<size_t>(t.to)]++;
    if (t.after >= 0) turn[i] = std::max(turn[i], turn[static_cast<size_t>(t.after)] + 1);
  }
  std::vector<int32_t> order(transfers.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t i) { return turn[static_cast<size_t>(i)]; });
  return order;
}

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
      const auto seconds = [](const int64_t (&bytes)[2], double speed) { return static_cast<double>(std::max(bytes[0], bytes[1])) / speed; };
      longest_s = std::max({longest_s, seconds(load.near, links.near_bytes_per_s), seconds(load.far, links.far_bytes_per_s)});
    }
  }
  return total_s + longest_s + static_cast<double>(plan.num_buckets) * links.call_s;
}

}  // namespace

void fill_buckets(Plan& plan, int num_ranks) {
  struct Reached {
    int32_t bucket = 0;
    int64_t bytes = 0;
  };
  std::vector<Reached> reached(static_cast<size_t>(num_ranks));
  for (int32_t i : in_turns(plan.transfers, num_ranks)) {
    Transfer& t = plan.transfers[static_cast<size_t>(i)];
    Reached &from = reached[static_cast<size_t>(t.from)], &to = reached[static_cast<size_t>(t.to)];
    const int64_t bytes = (t.end - t.begin) * plan.options.element_bytes;
    int32_t bucket = std::max(from.bucket, to.bucket);
    if (t.after >= 0) bucket = std::max(bucket, plan.transfers[static_cast<size_t>(t.after)].bucket + 1);
    const auto is_full = [&](const Reached& r) { return r.bucket == bucket && r.bytes + bytes > plan.options.bucket_bytes; };
    while (is_full(from) || is_full(to)) ++bucket;
    for (Reached* r : {&from, &to}) {
      if (r->bucket != bucket) *r = {bucket, 0};
      r->bytes += bytes;
      plan.stats.staging_peak_bytes = std::max(plan.stats.staging_peak_bytes, r->bytes);
    }
    t.bucket = bucket;
    plan.num_buckets = std::max<int64_t>(plan.num_buckets, bucket + 1);
  }
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
