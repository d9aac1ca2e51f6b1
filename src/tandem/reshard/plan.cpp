// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/reshard/plan_bucket.h"

namespace tandem::reshard {
namespace {

/// Elements [begin, end) of a fragment that a rank is to get.
struct Want {
  int32_t to;
  int64_t begin, end;
};

/// Fragments of so few bytes come from one sender.
constexpr int64_t kUncut_bytes = 16 << 10;

/// Deals what is wanted to those that hold it.
class Dealer {
 public:
  Dealer(Plan& plan, int num_ranks) : plan_(plan), sent_(static_cast<size_t>(num_ranks)) {}

  void deal(int32_t tensor, int32_t number, const Fragment& fragment) {
    if (fragment.receivers.empty()) return;
    tensor_ = tensor, fragment_ = number;
    elements_ = fragment.box.num_elements();
    unit_ = unit_of(fragment.box);
    relayed_.clear();
    const size_t first_near = plan_.transfers.size();
    std::vector<Want> far;
    for (auto begin = fragment.receivers.begin(); begin != fragment.receivers.end();) {
      const auto end = std::find_if(begin, fragment.receivers.end(), [&](int r) { return node(r) != node(*begin); });
      const std::vector<int> near = of_node(fragment.holders, node(*begin));
      if (!near.empty()) deal(near, wants(begin, end));
      else if (plan_.mode != Mode::kDirect && end - begin > 1) multicast_.emplace_back(begin, end);
      else std::ranges::copy(wants(begin, end), std::back_inserter(far));
      begin = end;
    }
    std::vector<int> senders = fragment.holders;
    if (plan_.mode == Mode::kGatherFirst && (!far.empty() || !multicast_.empty())) add_relays(first_near, senders);
    share(senders, far);
  }

 private:
  using Ranks = std::vector<int>::const_iterator;

  int node(int rank) const { return plan_.options.node_of(rank); }

  std::vector<int> of_node(const std::vector<int>& ranks, int number) const {
    const auto all = std::ranges::equal_range(ranks, number, {}, [&](int r) { return node(r); });
    return {all.begin(), all.end()};
  }

  std::vector<Want> wants(Ranks begin, Ranks end) const {
    std::vector<Want> all;
    for (Ranks r = begin; r != end; ++r) all.push_back({*r, 0, elements_});
    return all;
  }

  bool is_small() const { return elements_ * plan_.options.element_bytes <= kUncut_bytes; }

  /// Most bytes of a transfer. Where two stagings share a bucket it holds some of them each way, or they would not fill it.
  int64_t part_bytes() const {
    const int64_t room = plan_.options.bucket_bytes - (plan_.options.checksums ? kChecksum_bytes : 0);
    return std::max(plan_.options.overlap ? room / 6 : room, plan_.options.element_bytes);
  }

  /// Where a fragment may be cut: between its rows if they are short against a transfer, else anywhere.
  int64_t unit_of(const Box& box) const {
    if (box.begin.size() < 2) return 1;
    const int64_t row = elements_ / box.extent(0);
    return row * plan_.options.element_bytes * 4 <= part_bytes() ? row : 1;
  }

  /// Those that the transfers from `first` on give the fragment to send it as well.
  void add_relays(size_t first, std::vector<int>& senders) {
    for (size_t i = first; i < plan_.transfers.size(); ++i) {
      const Transfer& t = plan_.transfers[i];
      relayed_[t.to].push_back(static_cast<int32_t>(i));
    }
    for (const auto& [rank, ignored] : relayed_) senders.push_back(rank);
    std::ranges::sort(senders);
  }

  /// From other nodes: whole for ranks that are alone in theirs, a share for each of several, who then pass it on.
  void share(const std::vector<int>& senders, std::vector<Want> far) {
    const size_t first_shared = far.size();
    for (const auto& [begin, end] : multicast_) {
      const int64_t count = end - begin, units = elements_ / unit_;
      for (int64_t i = 0; i < count; ++i) {
        Want want{begin[i], i * units / count * unit_, (i + 1) * units / count * unit_};
        if (is_small()) want.begin = 0, want.end = i == tensor_ % count ? elements_ : 0;
        if (want.begin < want.end) far.push_back(want);
      }
    }
    const size_t first = plan_.transfers.size();
    if (!far.empty()) deal(senders, far);
    if (far.size() > first_shared) pass_on(first);
    multicast_.clear();
  }

  void pass_on(size_t first) {
    const size_t end = plan_.transfers.size();
    for (size_t i = first; i < end; ++i) {
      const Transfer got = plan_.transfers[i];
      const auto group = std::ranges::find_if(multicast_, [&](const auto& g) { return node(*g.first) == node(got.to); });
      if (group == multicast_.end()) continue;
      for (Ranks r = group->first; r != group->second; ++r)
        if (*r != got.to) send(got.to, {*r, got.begin, got.end}, static_cast<int32_t>(i));
    }
  }

  /// The holders that have sent least are filled up to one level, in one line along all that is wanted.
  void deal(const std::vector<int>& holders, const std::vector<Want>& wants) {
    if (is_small() || holders.size() == 1) {
      for (const Want& want : wants) send_on(least_loaded(holders, want.to), want);
      return;
    }
    int64_t total = 0;
    for (const Want& w : wants) total += w.end - w.begin;
    std::vector<int64_t> room = rooms(holders, total);
    size_t h = 0;
    for (Want want : wants)
      while (want.begin < want.end) {
        while (h + 1 < holders.size() && room[h] < std::min(unit_, want.end - want.begin)) room[h + 1] += room[h], ++h;
        int64_t end = std::min(want.end, want.begin + room[h] / unit_ * unit_);
        if (end <= want.begin || h + 1 == holders.size()) end = want.end;
        send_on(holders[h], {want.to, want.begin, end});
        room[h] -= end - want.begin;
        want.begin = end;
      }
  }

  /// Elements that each holder sends so that all have sent alike afterwards, those apart that have sent more already.
  std::vector<int64_t> rooms(const std::vector<int>& holders, int64_t total) const {
    const int64_t width = plan_.options.element_bytes;
    std::vector<int64_t> loads;
    for (int h : holders) loads.push_back(sent_[static_cast<size_t>(h)] / width);
    std::ranges::sort(loads);
    int64_t level = 0, below = 0;
    for (size_t n = 1; n <= loads.size(); ++n) {
      below += loads[n - 1];
      level = (total + below + static_cast<int64_t>(n) - 1) / static_cast<int64_t>(n);
      if (n == loads.size() || level <= loads[n]) break;
    }
    std::vector<int64_t> room;
    for (int h : holders) room.push_back(std::max<int64_t>(0, level - sent_[static_cast<size_t>(h)] / width));
    return room;
  }

  /// Of equally loaded holders the next one after the receiver: replicas then serve different receivers.
  int least_loaded(const std::vector<int>& holders, int to) const {
    const int size = static_cast<int>(sent_.size());
    return *std::ranges::min_element(
        holders, {}, [&](int h) { return std::pair(sent_[static_cast<size_t>(h)], (h - to + size) % size); });
  }

  /// From its source, or what it got from its target.
  void send_on(int from, const Want& want) {
    const auto relayed = relayed_.find(from);
    if (relayed == relayed_.end()) return send(from, want, -1);
    for (int32_t i : relayed->second) {
      const Transfer got = plan_.transfers[static_cast<size_t>(i)];
      send(from, {want.to, std::max(got.begin, want.begin), std::min(got.end, want.end)}, i);
    }
  }

  /// In parts that fit a bucket well.
  void send(int from, const Want& want, int32_t after) {
    const int64_t width = plan_.options.element_bytes, count = want.end - want.begin;
    if (count <= 0) return;
    const int64_t most = std::max(part_bytes() / width / unit_ * unit_, int64_t{1});
    const int64_t parts = (count + most - 1) / most, each = ((count + parts - 1) / parts + unit_ - 1) / unit_ * unit_;
    for (int64_t begin = want.begin; begin < want.end; begin += each)
      plan_.transfers.push_back({tensor_, fragment_, from, want.to, begin, std::min(begin + each, want.end), 0, after});
    sent_[static_cast<size_t>(from)] += count * width;
  }

  Plan& plan_;
  std::vector<int64_t> sent_;
  std::vector<std::pair<Ranks, Ranks>> multicast_;  // receivers of one node
  std::map<int, std::vector<int32_t>> relayed_;     // the transfers that give a rank the whole fragment, which it may send on
  int32_t tensor_ = 0, fragment_ = 0;
  int64_t elements_ = 0, unit_ = 1;
};

void count(Plan& plan, int num_ranks) {
  PlanStats& s = plan.stats;
  const PlanOptions& o = plan.options;
  s.sent_bytes.assign(static_cast<size_t>(num_ranks), 0);
  s.received_bytes.assign(static_cast<size_t>(num_ranks), 0);
  for (const Transfer& t : plan.transfers) {
    const int64_t bytes = (t.end - t.begin) * plan.options.element_bytes;
    s.bytes_total += bytes;
    s.sent_bytes[static_cast<size_t>(t.from)] += bytes;
    s.received_bytes[static_cast<size_t>(t.to)] += bytes;
    if (o.node_of(t.from) != o.node_of(t.to)) s.bytes_across_nodes += bytes;
  }
  struct Lack {
    int64_t kept = 0, ranks = 0, nodes = 0;
  };
  std::vector<Lack> lacks;  // by kind
  for (const std::vector<Fragment>& fragments : plan.fragments) {
    Lack& lack = lacks.emplace_back();
    for (const Fragment& f : fragments) {
      const int64_t bytes = f.box.num_elements() * plan.options.element_bytes;
      lack.kept += bytes * std::ssize(f.keepers);
      lack.ranks += bytes * std::ssize(f.receivers);
      int last = -1;
      for (int r : f.receivers) {
        const int node = o.node_of(r);
        if (node != last && !std::ranges::binary_search(f.holders, node, {}, [&](int h) { return o.node_of(h); })) lack.nodes += bytes;
        last = node;
      }
    }
  }
  for (int32_t kind : plan.kind_of) {
    const Lack& lack = lacks[static_cast<size_t>(kind)];
    s.bytes_kept += lack.kept, s.lower_bound_bytes += lack.ranks, s.lower_bound_across_nodes_bytes += lack.nodes;
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
  return plan;
}

/// Fills in the transfers, without buckets.
void deal(Plan& plan, int num_ranks, Mode mode) {
  plan.mode = mode;
  struct Turn {
    int32_t tensor, number;
    const Fragment* fragment;
  };
  std::vector<Turn> turns;
  for (int32_t tensor = 0; tensor < std::ssize(plan.kind_of); ++tensor) {
    const auto& fragments = plan.fragments[static_cast<size_t>(plan.kind_of[static_cast<size_t>(tensor)])];
    for (int32_t f = 0; f < std::ssize(fragments); ++f) turns.push_back({tensor, f, &fragments[static_cast<size_t>(f)]});
  }
  // Those with few holders first, so that those with many can make up for them.
  std::ranges::stable_sort(turns, {}, [](const Turn& turn) { return turn.fragment->holders.size(); });
  Dealer dealer(plan, num_ranks);
  for (const Turn& turn : turns) dealer.deal(turn.tensor, turn.number, *turn.fragment);
  count(plan, num_ranks);
}

/// The modes that can differ for these fragments.
std::vector<Mode> modes_of(const Plan& plan) {
  const auto node = [&](int r) { return plan.options.node_of(r); };
  bool has_peers = false, has_relays = false;
  for (const std::vector<Fragment>& fragments : plan.fragments)
    for (const Fragment& f : fragments) {
      int last = -1;  // the last node without a holder
      int64_t near = 0;
      for (int r : f.receivers)
        if (std::ranges::binary_search(f.holders, node(r), {}, node)) ++near;
        else has_peers |= node(r) == last, last = node(r);
      has_relays |= near > 0 && near < std::ssize(f.receivers);
    }
  std::vector<Mode> modes;
  if (has_peers) modes.push_back(Mode::kMulticast);
  if (has_relays) modes.push_back(Mode::kGatherFirst);
  modes.push_back(Mode::kDirect);
  return modes;
}

}  // namespace

const char* name_of(Mode mode) {
  constexpr const char* kNames[] = {"direct", "multicast", "gather_first"};
  return kNames[static_cast<size_t>(mode)];
}

Plan make_plan(const Table& table, const PlanOptions& options, Mode mode) {
  Plan plan = with_fragments(table, options);
  deal(plan, table.num_ranks, mode);
  fill_buckets(plan, table.num_ranks);
  return plan;
}

Plan make_plan(const Table& table, const PlanOptions& options) {
  const Plan undealt = with_fragments(table, options);
  std::optional<Plan> best;
  for (const Mode mode : modes_of(undealt)) {
    Plan plan = undealt;
    deal(plan, table.num_ranks, mode);
    if (best && least_modelled_s(plan, table.num_ranks) >= best->stats.modelled_s) continue;
    fill_buckets(plan, table.num_ranks);
    if (!best || plan.stats.modelled_s < best->stats.modelled_s) best = std::move(plan);
  }
  return std::move(*best);
}

}  // namespace tandem::reshard
