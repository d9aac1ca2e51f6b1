// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan.h"

#include <algorithm>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/reshard/plan_bucket.h"
#include "tandem/reshard/plan_deal.h"

namespace tandem::reshard {
namespace {

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
