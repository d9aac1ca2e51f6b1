// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/balance.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <queue>

#include "tandem/base/check.h"

namespace tandem::train {
namespace {

constexpr int kMovesPerPart = 16;

// Items of a part are a chain through Items::next.
struct Part {
  double cost = 0;
  int first = -1, last = -1;
};

// Parts of some of the items, the most expensive first.
struct Partial {
  std::vector<Part> parts;
  int64_t age;  // of equal differences the older goes first

  double difference() const { return parts.front().cost - parts.back().cost; }
};

struct LessDifferent {
  bool operator()(const Partial& a, const Partial& b) const {
    return a.difference() != b.difference() ? a.difference() < b.difference() : a.age > b.age;
  }
};

class Differencing {
 public:
  Differencing(std::span<const double> costs, int parts)
      : costs_(costs), num_parts_(static_cast<size_t>(parts)), next_(costs.size(), -1), order_(costs.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return cost(a) > cost(b); });
  }

  // Each item starts as a partial solution.
  std::vector<std::vector<int>> run() {
    for (const int item : order_) {
      Partial partial{std::vector<Part>(num_parts_), age_++};
      partial.parts[0] = {cost(item), item, item};
      partials_.push(std::move(partial));
    }
    while (partials_.size() > 1) {
      Partial a = pop(), b = pop();
      partials_.push(join(std::move(a), b));
    }
    std::vector<std::vector<int>> items(num_parts_);
    for (size_t p = 0; p < num_parts_ && !partials_.empty(); ++p)
      for (int i = partials_.top().parts[p].first; i >= 0; i = next_[static_cast<size_t>(i)]) items[p].push_back(i);
    return items;
  }

 private:
  double cost(int item) const { return costs_[static_cast<size_t>(item)]; }

  Partial pop() {
    Partial top = partials_.top();
    partials_.pop();
    return top;
  }

  Partial join(Partial a, const Partial& b) {
    for (size_t p = 0; p < num_parts_; ++p) {
      Part& to = a.parts[p];
      const Part& from = b.parts[num_parts_ - 1 - p];
      to.cost += from.cost;
      if (from.first < 0) continue;
      if (to.first < 0) to.first = from.first;
      else next_[static_cast<size_t>(to.last)] = from.first;
      to.last = from.last;
    }
    std::stable_sort(a.parts.begin(), a.parts.end(), [](const Part& x, const Part& y) { return x.cost > y.cost; });
    a.age = age_++;
    return a;
  }

  std::span<const double> costs_;
  size_t num_parts_;
  std::vector<int> next_, order_;
  std::priority_queue<Partial, std::vector<Partial>, LessDifferent> partials_;
  int64_t age_ = 0;
};

// Takes cost from the most expensive part while that lowers it and leaves the other part below it.
class Refinement {
 public:
  Refinement(std::span<const double> costs, std::vector<std::vector<int>>& parts) : costs_(costs), parts_(parts), sums_(parts.size()) {
    for (size_t p = 0; p < parts_.size(); ++p) {
      sort(parts_[p]);
      for (int i : parts_[p]) sums_[p] += cost(i);
    }
  }

  void run() {
    for (size_t left = parts_.size() * kMovesPerPart; left > 0 && improve(); --left) {}
  }

 private:
  // Item `give` of the most expensive part for item `take` of another one, -1: for nothing. `most` is then the larger of the two.
  struct Exchange {
    double most;
    size_t other = 0;
    int give = -1, take = -1;
  };

  double cost(int item) const { return item < 0 ? 0 : costs_[static_cast<size_t>(item)]; }
  void sort(std::vector<int>& part) const {
    std::sort(part.begin(), part.end(), [&](int a, int b) { return cost(a) != cost(b) ? cost(a) < cost(b) : a < b; });
  }

  void consider(size_t top, Exchange candidate, Exchange& best) const {
    const double moved = cost(candidate.give) - cost(candidate.take);
    if (moved <= 0) return;
    candidate.most = std::max(sums_[top] - moved, sums_[candidate.other] + moved);
    if (candidate.most < best.most) best = candidate;
  }

  // The best exchange moves half of what lies between the parts; for each item given, the items taken next to that are tried. Both
  // lists rise, and so does the item to take.
  void search(size_t top, size_t other, Exchange& best) const {
    const double half = (sums_[top] - sums_[other]) / 2;
    const std::vector<int>& others = parts_[other];
    auto take = others.begin();
    for (int give : parts_[top]) {
      consider(top, {0, other, give, -1}, best);
      while (take != others.end() && cost(*take) < cost(give) - half) ++take;
      if (take != others.end()) consider(top, {0, other, give, *take}, best);
      if (take != others.begin()) consider(top, {0, other, give, *(take - 1)}, best);
    }
  }

  bool improve() {
    const auto top = static_cast<size_t>(std::max_element(sums_.begin(), sums_.end()) - sums_.begin());
    Exchange best{sums_[top]};
    for (size_t other = 0; other < parts_.size(); ++other)
      if (other != top) search(top, other, best);
    if (best.give < 0) return false;
    const double moved = cost(best.give) - cost(best.take);
    std::erase(parts_[top], best.give);
    parts_[best.other].push_back(best.give);
    if (best.take >= 0) {
      std::erase(parts_[best.other], best.take);
      parts_[top].push_back(best.take);
    }
    for (size_t p : {top, best.other}) sort(parts_[p]);
    sums_[top] -= moved;
    sums_[best.other] += moved;
    return true;
  }

  std::span<const double> costs_;
  std::vector<std::vector<int>>& parts_;
  std::vector<double> sums_;
};

}  // namespace

std::vector<int> balance(std::span<const double> costs, int parts) {
  TANDEM_CHECK(parts >= 1, costs.size(), " items in ", parts, " parts");
  std::vector<std::vector<int>> items = Differencing(costs, parts).run();
  Refinement(costs, items).run();
  std::vector<int> part_of(costs.size());
  for (size_t p = 0; p < items.size(); ++p)
    for (int i : items[p]) part_of[static_cast<size_t>(i)] = static_cast<int>(p);
  return part_of;
}

}  // namespace tandem::train
