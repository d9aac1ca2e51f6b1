// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/tuning.h"

namespace tandem::reshard {
namespace {

/// Elements [begin, end) of a fragment that a rank is to get.
struct Want {
  int32_t to;
  int64_t begin, end;
};

/// Deals what is wanted to those that hold it.
class Dealer {
 public:
  Dealer(Plan& plan, int num_ranks)
      : plan_(plan), mean_bytes_(plan.stats.lower_bound_bytes / num_ranks), sent_bytes_(static_cast<size_t>(num_ranks)) {
    if (plan.mode != Mode::kDirect) foresee_passing_on();
  }

  void deal(int32_t tensor, int32_t number, const Fragment& fragment) {
    if (fragment.receivers.empty()) return;
    tensor_ = tensor, fragment_ = number;
    elements_ = fragment.box.num_elements();
    unit_ = unit_of(fragment.box);
    relayed_.clear();
    const size_t first = plan_.transfers.size();
    std::vector<Node> far;
    for (const Node& n : nodes_of(fragment)) {
      const std::vector<int> near = of_node(fragment.holders, node(*n.begin));
      if (near.empty()) far.push_back(n);
      else deal(near, wants(n.begin, n.end));
    }
    if (far.empty()) return;
    std::vector<int> senders = fragment.holders;
    if (plan_.mode == Mode::kGatherFirst) add_relays(first, senders);
    if (plan_.mode != Mode::kDirect) far.erase(far.begin(), serve_relay_nodes(senders, far));
    share(senders, far);
  }

 private:
  using Ranks = std::vector<int>::const_iterator;
  struct Node {
    Ranks begin, end;  ///< its receivers
  };

  std::vector<Node> nodes_of(const Fragment& f) const {
    std::vector<Node> nodes;
    for (Ranks begin = f.receivers.begin(); begin != f.receivers.end(); begin = nodes.back().end)
      nodes.push_back({begin, std::find_if(begin, f.receivers.end(), [&](int r) { return node(r) != node(*begin); })});
    return nodes;
  }

  /// What ranks of one node will give each other counts as sent from the beginning: it cannot be dealt to others, so what can be is
  /// dealt around it.
  void foresee_passing_on() {
    const std::vector<int64_t> tensors = plan_.tensors_by_kind();
    for (size_t kind = 0; kind < tensors.size(); ++kind)
      for (const Fragment& f : plan_.fragments[kind])
        for (const Node& n : nodes_of(f)) {
          if (!of_node(f.holders, node(*n.begin)).empty()) continue;
          const int64_t count = n.end - n.begin, bytes = f.box.num_elements() * plan_.options.element_bytes * tensors[kind];
          for (Ranks r = n.begin; r != n.end; ++r) sent_bytes_[static_cast<size_t>(*r)] += bytes * (count - 1) / count;
        }
  }

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

  bool is_small() const { return elements_ * plan_.options.element_bytes <= tuning::kUncut_bytes; }

  /// Most bytes of a transfer.
  int64_t part_bytes(bool is_far) const {
    const int64_t room = plan_.options.bucket_bytes - (plan_.options.checksums ? kChecksum_bytes : 0);
    return std::max(plan_.options.overlap || is_far ? room / tuning::kTransfers_of_bucket : room, plan_.options.element_bytes);
  }

  /// Where a fragment may be cut: between its rows if they are short against a transfer, else anywhere.
  int64_t unit_of(const Box& box) const {
    if (box.begin.size() < 2) return 1;
    const int64_t row = elements_ / box.extent(0);
    return row * plan_.options.element_bytes * tuning::kRows_of_transfer <= part_bytes(true) ? row : 1;
  }

  /// Those that the transfers from `first` on give the fragment to send it as well.
  void add_relays(size_t first, std::vector<int>& senders) {
    for (size_t i = first; i < plan_.transfers.size(); ++i) {
      const int rank = plan_.transfers[i].to;
      std::vector<int32_t>& parts = relayed_[rank];
      if (parts.empty()) senders.push_back(rank);
      parts.push_back(static_cast<int32_t>(i));
    }
    std::ranges::sort(senders);
  }

  /// Where the senders would end above the mean of all ranks, some of the nodes that lack the fragment get it first: the nodes that have
  /// sent least. They are put in front, and their ranks are added to the senders. Returns the end of them.
  std::vector<Node>::iterator serve_relay_nodes(std::vector<int>& senders, std::vector<Node>& far) {
    if (is_small() || far.size() < 2) return far.begin();
    if (level(senders, std::ssize(far) * elements_) * plan_.options.element_bytes <= mean_bytes_) return far.begin();
    std::ranges::stable_sort(far, {}, [&](const Node& n) {
      int64_t sum = 0;
      for (Ranks r = n.begin; r != n.end; ++r) sum += sent(*r);
      return sum / (n.end - n.begin);
    });
    const auto end = far.begin() + (std::ssize(far) + tuning::kNodes_of_relay - 1) / tuning::kNodes_of_relay;
    const size_t first = plan_.transfers.size();
    share(senders, {far.begin(), end});
    add_relays(first, senders);
    return end;
  }

  /// From other nodes: whole for ranks that are alone in theirs. Of several one takes what is a single message, and else each a share; they
  /// pass it on.
  void share(const std::vector<int>& senders, const std::vector<Node>& nodes) {
    std::vector<Want> far;
    for (const Node& n : nodes) {
      if (plan_.mode == Mode::kDirect || n.end - n.begin == 1) {
        std::ranges::copy(wants(n.begin, n.end), std::back_inserter(far));
        continue;
      }
      const int64_t count = n.end - n.begin, units = elements_ / unit_;
      if (is_small() || elements_ * plan_.options.element_bytes <= part_bytes(true)) {
        far.push_back({taker(n), 0, elements_});
        continue;
      }
      for (int64_t i = 0; i < count; ++i) {
        const Want want{n.begin[i], i * units / count * unit_, (i + 1) * units / count * unit_};
        if (want.begin < want.end) far.push_back(want);
      }
    }
    const size_t first = plan_.transfers.size();
    deal(senders, far);
    if (plan_.mode != Mode::kDirect) pass_on(first, nodes);
  }

  /// Who of a node takes a fragment for all of it: the one that has sent least.
  int taker(const Node& n) {
    const int64_t bytes = elements_ * plan_.options.element_bytes, count = n.end - n.begin;
    for (Ranks r = n.begin; r != n.end; ++r) sent_bytes_[static_cast<size_t>(*r)] -= bytes * (count - 1) / count;  // as it was foreseen
    const int rank = *std::min_element(n.begin, n.end, [&](int a, int b) { return sent(a) < sent(b); });
    sent_bytes_[static_cast<size_t>(rank)] += bytes * (count - 1);
    return rank;
  }

  void pass_on(size_t first, const std::vector<Node>& nodes) {
    const size_t end = plan_.transfers.size();
    for (size_t i = first; i < end; ++i) {
      const Transfer got = plan_.transfers[i];
      const Node& n = *std::ranges::find_if(nodes, [&](const Node& other) { return node(*other.begin) == node(got.to); });
      for (Ranks r = n.begin; r != n.end; ++r)
        if (*r != got.to) add(got.to, {*r, got.begin, got.end}, static_cast<int32_t>(i));  // foreseen in sent_bytes_
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
    const int64_t up_to = level(holders, total);
    std::vector<int64_t> room;
    for (int h : holders) room.push_back(std::max<int64_t>(0, up_to - sent(h)));
    return room;
  }

  /// Elements that those of the holders have sent that send `total` more.
  int64_t level(const std::vector<int>& holders, int64_t total) const {
    std::vector<int64_t> loads;
    for (int h : holders) loads.push_back(sent(h));
    std::ranges::sort(loads);
    int64_t level = 0, below = 0;
    for (size_t n = 1; n <= loads.size(); ++n) {
      below += loads[n - 1];
      level = (total + below + static_cast<int64_t>(n) - 1) / static_cast<int64_t>(n);
      if (n == loads.size() || level <= loads[n]) break;
    }
    return level;
  }

  /// Elements.
  int64_t sent(int rank) const { return sent_bytes_[static_cast<size_t>(rank)] / plan_.options.element_bytes; }

  /// Of equally loaded holders the next one after the receiver: replicas then serve different receivers.
  int least_loaded(const std::vector<int>& holders, int to) const {
    const int size = static_cast<int>(sent_bytes_.size());
    return *std::ranges::min_element(holders, {}, [&](int h) { return std::pair(sent(h), (h - to + size) % size); });
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

  void send(int from, const Want& want, int32_t after) {
    if (want.begin >= want.end) return;
    add(from, want, after);
    sent_bytes_[static_cast<size_t>(from)] += (want.end - want.begin) * plan_.options.element_bytes;
  }

  /// In parts that fit a bucket well.
  void add(int from, const Want& want, int32_t after) {
    const int64_t count = want.end - want.begin;
    const int64_t most = std::max(part_bytes(node(from) != node(want.to)) / plan_.options.element_bytes / unit_ * unit_, int64_t{1});
    const int64_t parts = (count + most - 1) / most, each = ((count + parts - 1) / parts + unit_ - 1) / unit_ * unit_;
    for (int64_t begin = want.begin; begin < want.end; begin += each)
      plan_.transfers.push_back({tensor_, fragment_, from, want.to, begin, std::min(begin + each, want.end), 0, after});
  }

  Plan& plan_;
  const int64_t mean_bytes_;
  std::vector<int64_t> sent_bytes_;              // by rank
  std::map<int, std::vector<int32_t>> relayed_;  // the transfers that give a rank the whole fragment, which it may send on
  int32_t tensor_ = 0, fragment_ = 0;
  int64_t elements_ = 0, unit_ = 1;
};

}  // namespace

void deal(Plan& plan, int num_ranks, Mode mode) {
  plan.mode = mode;
  struct Turn {
    int32_t tensor, number;
    const Fragment* fragment;
  };
  std::vector<Turn> turns;
  size_t receivers = 0;
  for (int32_t tensor = 0; tensor < std::ssize(plan.kind_of); ++tensor) {
    const auto& fragments = plan.fragments[static_cast<size_t>(plan.kind_of[static_cast<size_t>(tensor)])];
    for (int32_t f = 0; f < std::ssize(fragments); ++f) {
      turns.push_back({tensor, f, &fragments[static_cast<size_t>(f)]});
      receivers += turns.back().fragment->receivers.size();
    }
  }
  // Those with few holders first, so that those with many can make up for them.
  std::ranges::stable_sort(turns, {}, [](const Turn& turn) { return turn.fragment->holders.size(); });
  plan.transfers.clear();
  plan.transfers.reserve(2 * receivers);  // most come in a part or two
  Dealer dealer(plan, num_ranks);
  for (const Turn& turn : turns) dealer.deal(turn.tensor, turn.number, *turn.fragment);
}

}  // namespace tandem::reshard
