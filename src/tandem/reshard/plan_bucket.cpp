// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_bucket.h"

#include <algorithm>
#include <numeric>

namespace tandem::reshard {
namespace {

/// How full each bucket of each rank is.
class Loads {
 public:
  Loads(int num_ranks, const PlanOptions& options)
      : bucket_bytes_(options.bucket_bytes), overlap_(options.overlap), ranks_(static_cast<size_t>(num_ranks)) {}

  /// The first bucket from `earliest` on in which both ranks have room for so many bytes. It is theirs then.
  int32_t place(const Transfer& t, int64_t bytes, int32_t earliest) {
    Rank &from = ranks_[static_cast<size_t>(t.from)], &to = ranks_[static_cast<size_t>(t.to)];
    // Buckets that are nearly full are not looked at again, or the search would be quadratic.
    const int64_t nearly_full = bucket_bytes_ / 16;
    while (room(from.to_send, from.first_to_send) < nearly_full) ++from.first_to_send;
    while (room(to.to_receive, to.first_to_receive) < nearly_full) ++to.first_to_receive;
    int32_t bucket = std::max({earliest, from.first_to_send, to.first_to_receive});
    while (room(from.to_send, bucket) < bytes || room(to.to_receive, bucket) < bytes) ++bucket;
    add(from, bucket, {bytes, 0});
    add(to, bucket, {0, bytes});
    return bucket;
  }

  int64_t peak() const {
    int64_t peak = 0;
    for (const Rank& rank : ranks_)
      for (int32_t b = 0; b < std::ssize(rank.buckets); ++b) peak = std::max(peak, staged(rank, b));
    return peak;
  }

 private:
  struct Bytes {
    int64_t sent = 0, received = 0;
  };
  struct Rank {
    std::vector<Bytes> buckets;
    std::vector<int64_t> to_send, to_receive;  // room for more bytes, by bucket
    int32_t first_to_send = 0, first_to_receive = 0;
  };
  int64_t room(const std::vector<int64_t>& rooms, int32_t bucket) const {
    return bucket < std::ssize(rooms) ? rooms[static_cast<size_t>(bucket)] : bucket_bytes_;
  }
  static Bytes at(const Rank& rank, int32_t bucket) {
    return bucket >= 0 && bucket < std::ssize(rank.buckets) ? rank.buckets[static_cast<size_t>(bucket)] : Bytes{};
  }

  /// While a bucket travels.
  int64_t staged(const Rank& rank, int32_t bucket) const {
    const Bytes here = at(rank, bucket);
    return here.sent + here.received + (overlap_ ? std::max(at(rank, bucket - 1).received, at(rank, bucket + 1).sent) : 0);
  }
  /// What is sent in a bucket is packed while the one before travels.
  int64_t room_to_send(const Rank& rank, int32_t bucket) const {
    const Bytes before = at(rank, bucket - 1);
    const int64_t meanwhile = overlap_ ? before.sent + before.received + at(rank, bucket).sent : 0;
    return bucket_bytes_ - std::max(staged(rank, bucket), meanwhile);
  }
  /// What is received in a bucket is unpacked while the one behind travels.
  int64_t room_to_receive(const Rank& rank, int32_t bucket) const {
    const Bytes behind = at(rank, bucket + 1);
    const int64_t meanwhile = overlap_ ? behind.sent + behind.received + at(rank, bucket).received : 0;
    return bucket_bytes_ - std::max(staged(rank, bucket), meanwhile);
  }

  void add(Rank& rank, int32_t bucket, Bytes more) {
    if (const size_t least = static_cast<size_t>(bucket) + 2; rank.buckets.size() < least) {
      rank.buckets.resize(least);
      for (auto* rooms : {&rank.to_send, &rank.to_receive}) rooms->resize(least, bucket_bytes_);
    }
    Bytes& bytes = rank.buckets[static_cast<size_t>(bucket)];
    bytes.sent += more.sent, bytes.received += more.received;
    for (int32_t b = std::max(bucket - 1, 0); b <= bucket + 1; ++b) {
      rank.to_send[static_cast<size_t>(b)] = room_to_send(rank, b);
      rank.to_receive[static_cast<size_t>(b)] = room_to_receive(rank, b);
    }
  }

  const int64_t bucket_bytes_;
  const bool overlap_;
  std::vector<Rank> ranks_;
};

double modelled_s(const Plan& plan, int num_ranks) {
  struct Load {
    int64_t bucket = -1;
    int64_t near[2] = {}, far[2] = {};  // out, in
  };
  const PlanOptions& o = plan.options;
  std::vector<Load> loads(static_cast<size_t>(num_ranks));
  double total_s = 0, longest_s = 0;
  int64_t bucket = -1;
  for (const Transfer& t : plan.transfers) {
    if (t.bucket != bucket) total_s += longest_s, longest_s = 0, bucket = t.bucket;
    for (const auto& [rank, way] : {std::pair(t.from, 0), std::pair(t.to, 1)}) {
      Load& load = loads[static_cast<size_t>(rank)];
      if (load.bucket != bucket) load = {bucket, {}, {}};
      (o.node_of(t.from) == o.node_of(t.to) ? load.near : load.far)[way] += (t.end - t.begin) * o.element_bytes;
      const auto seconds = [](const int64_t (&way)[2], double speed) { return static_cast<double>(std::max(way[0], way[1])) / speed; };
      longest_s = std::max({longest_s, seconds(load.near, o.links.near_bytes_per_s), seconds(load.far, o.links.far_bytes_per_s)});
    }
  }
  return total_s + longest_s + static_cast<double>(plan.num_calls) * o.links.call_s;
}

/// `order` by keys below `num_keys`; equal ones stay in their order.
template <class KeyOf>
std::vector<int32_t> sorted_by(const std::vector<int32_t>& order, size_t num_keys, KeyOf key_of) {
  std::vector<int32_t> place(num_keys + 1), sorted(order.size());
  for (int32_t i : order) ++place[static_cast<size_t>(key_of(i)) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  for (int32_t i : order) sorted[static_cast<size_t>(place[static_cast<size_t>(key_of(i))]++)] = i;
  return sorted;
}

std::vector<int32_t> as_they_are(const Plan& plan) {
  std::vector<int32_t> order(plan.transfers.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int32_t> by_tensor(const Plan& plan) {
  return sorted_by(as_they_are(plan), plan.kind_of.size(), [&](int32_t i) { return plan.transfers[static_cast<size_t>(i)].tensor; });
}

/// The transfers in the order in which they are placed: each sender goes along the table, and all are equally far. What is passed on goes
/// behind what brings it.
std::vector<int32_t> order_of(const Plan& plan, int num_ranks) {
  const std::vector<Transfer>& all = plan.transfers;
  const std::vector<int32_t> order = by_tensor(plan);
  std::vector<int64_t> total(static_cast<size_t>(num_ranks)), sent(total.size());
  for (const Transfer& t : all)
    if (t.after < 0) total[static_cast<size_t>(t.from)] += t.end - t.begin;
  constexpr size_t kSteps = 1 << 14;  // how finely senders keep pace
  std::vector<int32_t> progress(all.size());
  for (int32_t i : order) {
    const Transfer& t = all[static_cast<size_t>(i)];
    const auto from = static_cast<size_t>(t.from);
    int32_t& done = progress[static_cast<size_t>(i)];
    if (t.after >= 0) done = progress[static_cast<size_t>(t.after)];
    else done = static_cast<int32_t>(static_cast<double>(sent[from] += t.end - t.begin) / static_cast<double>(total[from]) * kSteps);
  }
  return sorted_by(order, kSteps + 1, [&](int32_t i) { return progress[static_cast<size_t>(i)]; });
}

/// Elements that each rank takes from itself.
std::vector<int64_t> kept_elements(const Plan& plan, int num_ranks) {
  std::vector<int64_t> tensors(plan.fragments.size()), kept(static_cast<size_t>(num_ranks));
  for (int32_t kind : plan.kind_of) ++tensors[static_cast<size_t>(kind)];
  for (size_t kind = 0; kind < tensors.size(); ++kind)
    for (const Fragment& f : plan.fragments[kind])
      for (int r : f.keepers) kept[static_cast<size_t>(r)] += f.box.num_elements() * tensors[kind];
  return kept;
}

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

void fill_buckets(Plan& plan, int num_ranks) {
  const PlanOptions& o = plan.options;
  Loads loads(num_ranks, o);
  const int32_t gap = o.overlap ? 2 : 1;  // a bucket is packed while the one before travels
  for (int32_t i : order_of(plan, num_ranks)) {
    Transfer& t = plan.transfers[static_cast<size_t>(i)];
    const int32_t earliest = t.after < 0 ? 0 : plan.transfers[static_cast<size_t>(t.after)].bucket + gap;
    t.bucket = loads.place(t, (t.end - t.begin) * o.element_bytes + (o.checksums ? kChecksum_bytes : 0), earliest);
    plan.num_calls = std::max<int64_t>(plan.num_calls, t.bucket + 1);
  }
  plan.stats.staging_peak_bytes = loads.peak();
  // From here on `after` only says whether there is one.
  std::vector<Transfer> sorted;
  sorted.reserve(plan.transfers.size());
  const auto bucket_of = [&](int32_t i) { return plan.transfers[static_cast<size_t>(i)].bucket; };
  for (int32_t i : sorted_by(by_tensor(plan), static_cast<size_t>(plan.num_calls),
                             bucket_of)) sorted.push_back(plan.transfers[static_cast<size_t>(i)]);
  plan.transfers = std::move(sorted);
  plan.stats.modelled_s = modelled_s(plan, num_ranks);
  const int64_t kept_bytes = std::ranges::max(kept_elements(plan, num_ranks)) * o.element_bytes;
  plan.num_buckets = std::max(plan.num_calls, (kept_bytes + o.bucket_bytes - 1) / o.bucket_bytes);
}

double least_modelled_s(const Plan& plan, int num_ranks) {
  const PlanOptions& o = plan.options;
  struct Load {
    double near_s[2] = {}, far_s[2] = {};  // out, in
  };
  std::vector<Load> loads(static_cast<size_t>(num_ranks));
  double longest_s = 0;
  for (const Transfer& t : plan.transfers) {
    const bool is_near = o.node_of(t.from) == o.node_of(t.to);
    const double bytes_per_s = is_near ? o.links.near_bytes_per_s : o.links.far_bytes_per_s;
    const double seconds = static_cast<double>((t.end - t.begin) * o.element_bytes) / bytes_per_s;
    for (const auto& [rank, way] : {std::pair(t.from, 0), std::pair(t.to, 1)}) {
      Load& load = loads[static_cast<size_t>(rank)];
      longest_s = std::max(longest_s, (is_near ? load.near_s : load.far_s)[way] += seconds);
    }
  }
  return longest_s;
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
