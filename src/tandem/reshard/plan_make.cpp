// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_make.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>

#include "tandem/base/check.h"
#include "tandem/reshard/rooms.h"
#include "tandem/reshard/tuning.h"

namespace tandem::reshard {
namespace {

/// How full each bucket of each rank is.
class Occupancy {
 public:
  /// `far_bytes`: most that a rank sends to other nodes, and gets from there, in one bucket.
  Occupancy(int num_ranks, const PlanOptions& options, int64_t far_bytes)
      : bucket_bytes_(options.bucket_bytes),
        overlap_(options.overlap),
        ranks_(static_cast<size_t>(num_ranks), Rank{{}, Rooms(bucket_bytes_), Rooms(bucket_bytes_), Rooms(far_bytes), Rooms(far_bytes)}) {}

  /// The first bucket from `earliest` on in which both ranks have room for so many bytes. It is theirs then.
  int32_t place(const Transfer& t, int64_t bytes, int32_t earliest, bool is_far) {
    Rank &from = ranks_[static_cast<size_t>(t.from)], &to = ranks_[static_cast<size_t>(t.to)];
    const std::array<const Rooms*, 4> rooms = {&from.to_send, overlap_ ? &to.to_receive : &to.to_send, &from.to_send_far,
                                               &to.to_receive_far};
    const int32_t bucket = Rooms::first_in_all(std::span(rooms).first(is_far ? 4 : 2), bytes, earliest);
    add(from, bucket, {bytes, 0});
    add(to, bucket, {0, bytes});
    if (!is_far) return bucket;
    for (Rooms* far : {&from.to_send_far, &to.to_receive_far}) far->set(bucket, far->in(bucket) - bytes);
    return bucket;
  }

  /// Most bytes that a rank stages.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Bytes {
    int64_t sent = 0, received = 0;
  };
  struct Rank {
    std::vector<Bytes> buckets;  // if overlapped
    Rooms to_send, to_receive;   // the former for both, if not overlapped
    Rooms to_send_far, to_receive_far;
  };
  static Bytes at(const Rank& rank, int32_t bucket) {
    return bucket >= 0 && bucket < std::ssize(rank.buckets) ? rank.buckets[static_cast<size_t>(bucket)] : Bytes{};
  }

  /// While a bucket travels.
  static int64_t staged(const Rank& rank, int32_t bucket) {
    const Bytes here = at(rank, bucket);
    return here.sent + here.received + std::max(at(rank, bucket - 1).received, at(rank, bucket + 1).sent);
  }
  /// What is sent in a bucket is packed while the one before travels.
  int64_t room_to_send(const Rank& rank, int32_t bucket) const {
    const Bytes before = at(rank, bucket - 1);
    return bucket_bytes_ - std::max(staged(rank, bucket), before.sent + before.received + at(rank, bucket).sent);
  }
  /// What is received in a bucket is unpacked while the one behind travels.
  int64_t room_to_receive(const Rank& rank, int32_t bucket) const {
    const Bytes behind = at(rank, bucket + 1);
    return bucket_bytes_ - std::max(staged(rank, bucket), behind.sent + behind.received + at(rank, bucket).received);
  }

  void add(Rank& rank, int32_t bucket, Bytes more) {
    if (!overlap_) {
      const int64_t room = rank.to_send.in(bucket) - more.sent - more.received;
      rank.to_send.set(bucket, room);
      peak_bytes_ = std::max(peak_bytes_, bucket_bytes_ - room);
      return;
    }
    rank.buckets.resize(std::max(rank.buckets.size(), static_cast<size_t>(bucket) + 2));
    Bytes& bytes = rank.buckets[static_cast<size_t>(bucket)];
    bytes.sent += more.sent, bytes.received += more.received;
    for (int32_t b = std::max(bucket - 1, 0); b <= bucket + 1; ++b) {
      rank.to_send.set(b, room_to_send(rank, b));
      rank.to_receive.set(b, room_to_receive(rank, b));
      peak_bytes_ = std::max(peak_bytes_, staged(rank, b));
    }
  }

  const int64_t bucket_bytes_;
  const bool overlap_;
  int64_t peak_bytes_ = 0;
  std::vector<Rank> ranks_;
};

/// What a rank sends and gets, within its node and across nodes.
struct Load {
  int64_t near[2] = {}, far[2] = {};  // bytes out, in

  int64_t bytes() const { return near[0] + near[1] + far[0] + far[1]; }
  int64_t far_bytes() const { return std::max(far[0], far[1]); }
  /// Both ways at once.
  double seconds(const Links& links) const {
    const auto one = [](const int64_t (&ways)[2], double speed) { return static_cast<double>(std::max(ways[0], ways[1])) / speed; };
    return std::max(one(near, links.near_bytes_per_s), one(far, links.far_bytes_per_s));
  }
};

/// Of every rank, by the transfers added.
class RankLoads {
 public:
  RankLoads(const PlanOptions& options, int num_ranks) : options_(options), loads_(static_cast<size_t>(num_ranks)) {}

  void add(const Transfer& t, int64_t bytes) {
    const bool is_far = options_.is_far(t);
    for (const auto& [rank, way] : {std::pair(t.from, 0), std::pair(t.to, 1)}) {
      Load& load = loads_[static_cast<size_t>(rank)];
      (is_far ? load.far : load.near)[way] += bytes;
    }
  }
  Load& of(int32_t rank) { return loads_[static_cast<size_t>(rank)]; }
  const std::vector<Load>& all() const { return loads_; }

 private:
  const PlanOptions& options_;
  std::vector<Load> loads_;
};

int64_t bytes_of(const Transfer& t, const PlanOptions& o) { return (t.end - t.begin) * o.element_bytes; }

/// A bucket lasts as long as for its busiest rank. Transfers stand by bucket.
double modelled_s(const Plan& plan, int num_ranks) {
  const PlanOptions& o = plan.options;
  RankLoads loads(o, num_ranks);
  double total_s = 0;
  for (auto begin = plan.transfers.begin(); begin != plan.transfers.end();) {
    const auto end = std::find_if(begin, plan.transfers.end(), [&](const Transfer& t) { return t.bucket != begin->bucket; });
    double longest_s = 0;
    for (auto t = begin; t != end; ++t) {
      loads.add(*t, bytes_of(*t, o));
      for (int32_t rank : {t->from, t->to}) longest_s = std::max(longest_s, loads.of(rank).seconds(o.links));
    }
    for (auto t = begin; t != end; ++t) loads.of(t->from) = loads.of(t->to) = {};
    total_s += longest_s;
    begin = end;
  }
  return total_s + static_cast<double>(plan.num_calls) * o.links.call_s;
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

int64_t message_bytes(const Transfer& t, const PlanOptions& o) { return bytes_of(t, o) + (o.checksums ? kChecksum_bytes : 0); }

/// The order in which transfers are given their buckets. A sender has two ways: to its own node and to others. Each way goes along the
/// table. At any time, all ways of all senders have done the same fraction of their elements. A transfer that passes on what another
/// brings stands as far as that one. `order`: by tensor.
std::vector<int32_t> order_of(const Plan& plan, int num_ranks, const std::vector<int32_t>& order) {
  const std::vector<Transfer>& all = plan.transfers;
  const auto way_of = [&](const Transfer& t) { return static_cast<size_t>(2 * t.from + (plan.options.is_far(t) ? 1 : 0)); };
  std::vector<int64_t> total(static_cast<size_t>(2 * num_ranks)), sent(total.size());
  for (const Transfer& t : all)
    if (t.after < 0) total[way_of(t)] += t.end - t.begin;
  std::vector<int32_t> progress(all.size());
  for (int32_t i : order) {
    const Transfer& t = all[static_cast<size_t>(i)];
    const size_t way = way_of(t);
    int32_t& done = progress[static_cast<size_t>(i)];
    if (t.after >= 0) done = progress[static_cast<size_t>(t.after)];
    else done = static_cast<int32_t>(static_cast<double>(sent[way] += t.end - t.begin) / static_cast<double>(total[way]) *
                                     tuning::kSteps_of_pace);
  }
  return sorted_by(order, tuning::kSteps_of_pace + 1, [&](int32_t i) { return progress[static_cast<size_t>(i)]; });
}

/// Most that a rank sends to other nodes, or gets from them, in one bucket. The way across nodes is the slow one. Where every bucket has
/// its part of it, what goes within nodes costs little beside it.
int64_t far_bytes_of_bucket(const Plan& plan, int num_ranks) {
  const PlanOptions& o = plan.options;
  RankLoads loads(o, num_ranks);
  int64_t most = 0, most_far = 0, longest_far = 1;
  for (const Transfer& t : plan.transfers) {
    const int64_t bytes = message_bytes(t, o);
    loads.add(t, bytes);
    if (o.is_far(t)) longest_far = std::max(longest_far, bytes);
  }
  for (const Load& load : loads.all()) most = std::max(most, load.bytes()), most_far = std::max(most_far, load.far_bytes());
  const int64_t buckets = std::max<int64_t>(1, tuning::buckets_of(most, o.overlap, o.bucket_bytes));
  return std::max(longest_far, tuning::far_bytes(most_far, buckets));
}

/// Elements that each rank takes from itself.
std::vector<int64_t> kept_elements(const Plan& plan, int num_ranks) {
  const std::vector<int64_t> tensors = plan.tensors_by_kind();
  std::vector<int64_t> kept(static_cast<size_t>(num_ranks));
  for (size_t kind = 0; kind < tensors.size(); ++kind)
    for (const Fragment& f : plan.fragments[kind])
      for (int r : f.keepers) kept[static_cast<size_t>(r)] += f.box.num_elements() * tensors[kind];
  return kept;
}

/// What the transfers say.
void count_sent(Plan& plan, int num_ranks) {
  PlanStats& s = plan.stats;
  const PlanOptions& o = plan.options;
  s.sent_bytes.assign(static_cast<size_t>(num_ranks), 0);
  s.received_bytes.assign(static_cast<size_t>(num_ranks), 0);
  for (const Transfer& t : plan.transfers) {
    const int64_t bytes = (t.end - t.begin) * plan.options.element_bytes;
    s.bytes_total += bytes;
    s.sent_bytes[static_cast<size_t>(t.from)] += bytes;
    s.received_bytes[static_cast<size_t>(t.to)] += bytes;
    if (o.is_far(t)) s.bytes_across_nodes += bytes;
  }
}

/// What the fragments say.
void count_lacking(Plan& plan) {
  PlanStats& s = plan.stats;
  const PlanOptions& o = plan.options;
  const std::vector<int64_t> tensors = plan.tensors_by_kind();
  for (size_t kind = 0; kind < tensors.size(); ++kind)
    for (const Fragment& f : plan.fragments[kind]) {
      const int64_t bytes = f.box.num_elements() * o.element_bytes * tensors[kind];
      s.bytes_kept += bytes * std::ssize(f.keepers);
      s.lower_bound_bytes += bytes * std::ssize(f.receivers);
      int last = -1;
      for (int r : f.receivers) {
        const int node = o.node_of(r);
        const bool has_holder = std::ranges::binary_search(f.holders, node, {}, [&](int h) { return o.node_of(h); });
        if (node != last && !has_holder) s.lower_bound_across_nodes_bytes += bytes;
        last = node;
      }
    }
}

bool is_alias(const Table& table) {
  const auto same = [](const Piece& a, const Piece& b) { return a.rank == b.rank && a.box == b.box; };
  return std::ranges::all_of(table.kinds, [&](const Table::Kind& k) {
    return std::ranges::equal(table.holdings[static_cast<size_t>(k.source)], table.holdings[static_cast<size_t>(k.target)], same);
  });
}

Plan with_fragments(const Table& table, const PlanOptions& options) {
  const int64_t least = options.element_bytes + (options.checksums ? kChecksum_bytes : 0);
  TANDEM_CHECK(options.element_bytes > 0 && options.bucket_bytes >= least, "a bucket of ", options.bucket_bytes, " bytes");
  Plan plan;
  plan.options = options;
  plan.alias = options.may_alias && is_alias(table);
  if (plan.alias) return plan;
  plan.kind_of = table.kind_of;
  for (const Table::Kind& k : table.kinds)
    plan.fragments.push_back(fragments_of(table.holdings[static_cast<size_t>(k.source)], table.holdings[static_cast<size_t>(k.target)]));
  count_lacking(plan);
  return plan;
}

/// The modes that can differ for these fragments.
std::vector<Mode> modes_of(const Plan& plan) {
  const auto node = [&](int r) { return plan.options.node_of(r); };
  bool has_multicast = false, has_gather = false;
  for (const std::vector<Fragment>& fragments : plan.fragments)
    for (const Fragment& f : fragments) {
      const auto near = std::ranges::count_if(f.receivers, [&](int r) { return std::ranges::binary_search(f.holders, node(r), {}, node); });
      has_multicast |= std::ssize(f.receivers) - near > 1;
      has_gather |= near > 0 && near < std::ssize(f.receivers);
    }
  std::vector<Mode> modes;
  if (has_multicast) modes.push_back(Mode::kMulticast);
  if (has_gather) modes.push_back(Mode::kGatherFirst);
  modes.push_back(Mode::kDirect);
  return modes;
}

}  // namespace

void fill_buckets(Plan& plan, int num_ranks) {
  const PlanOptions& o = plan.options;
  Occupancy occupancy(num_ranks, o, far_bytes_of_bucket(plan, num_ranks));
  const int32_t gap = o.overlap ? 2 : 1;  // a bucket is packed while the one before travels
  const std::vector<int32_t> along_the_table = by_tensor(plan);
  std::vector<int32_t> buckets(plan.transfers.size());
  for (int32_t i : order_of(plan, num_ranks, along_the_table)) {
    const Transfer& t = plan.transfers[static_cast<size_t>(i)];
    const int32_t earliest = t.after < 0 ? 0 : buckets[static_cast<size_t>(t.after)] + gap;
    buckets[static_cast<size_t>(i)] = occupancy.place(t, message_bytes(t, o), earliest, o.is_far(t));
  }
  plan.num_calls = buckets.empty() ? 0 : std::ranges::max(buckets) + 1;
  plan.stats.staging_peak_bytes = occupancy.peak_bytes();
  // From here on `after` only says whether there is one.
  std::vector<Transfer> sorted;
  sorted.reserve(plan.transfers.size());
  const auto bucket_of = [&](int32_t i) { return buckets[static_cast<size_t>(i)]; };
  for (int32_t i : sorted_by(along_the_table, static_cast<size_t>(plan.num_calls), bucket_of)) {
    sorted.push_back(plan.transfers[static_cast<size_t>(i)]);
    sorted.back().bucket = bucket_of(i);
  }
  plan.transfers = std::move(sorted);
  plan.stats.modelled_s = modelled_s(plan, num_ranks);
  const int64_t kept_bytes = std::ranges::max(kept_elements(plan, num_ranks)) * o.element_bytes;
  plan.num_buckets = std::max(plan.num_calls, (kept_bytes + o.bucket_bytes - 1) / o.bucket_bytes);
}

double busiest_rank_s(const Plan& plan, int num_ranks) {
  RankLoads loads(plan.options, num_ranks);
  for (const Transfer& t : plan.transfers) loads.add(t, bytes_of(t, plan.options));
  double longest_s = 0;
  for (const Load& load : loads.all()) longest_s = std::max(longest_s, load.seconds(plan.options.links));
  return longest_s;
}

Plan make_plan(const Table& table, const PlanOptions& options, Mode mode) {
  Plan plan = with_fragments(table, options);
  deal(plan, table.num_ranks, mode);
  count_sent(plan, table.num_ranks);
  fill_buckets(plan, table.num_ranks);
  return plan;
}

Plan make_plan(const Table& table, const PlanOptions& options) {
  Plan plan = with_fragments(table, options);
  std::vector<Transfer> best;
  std::optional<Mode> mode_of_best;
  double best_s = 0;
  for (const Mode mode : modes_of(plan)) {
    deal(plan, table.num_ranks, mode);
    const double s = busiest_rank_s(plan, table.num_ranks);
    if (mode_of_best && s >= best_s) continue;
    mode_of_best = mode, best_s = s;
    best.swap(plan.transfers);
  }
  plan.mode = *mode_of_best;
  plan.transfers.swap(best);
  count_sent(plan, table.num_ranks);
  fill_buckets(plan, table.num_ranks);
  return plan;
}

}  // namespace tandem::reshard
