// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan.h"

#include <algorithm>
#include <map>

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

struct Holder {
  int rank;
  int64_t index;
  const TensorSpec* spec;
};

bool contains(const Box& outer, const Box& inner) {
  for (size_t d = 0; d < inner.begin.size(); ++d)
    if (inner.begin[d] < outer.begin[d] || inner.end[d] > outer.end[d]) return false;
  return true;
}

bool equal(const RankBoxes& a, const RankBoxes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](const TensorSpec& s, const TensorSpec& t) { return s.name == t.name && s.box == t.box; });
  });
}

class Planner {
 public:
  Planner(const RankBoxes& source, const RankBoxes& target, const PlanOptions& options) : target_(target) {
    TANDEM_CHECK(source.size() == target.size(), "layouts of ", source.size(), " and ", target.size(), " ranks");
    TANDEM_CHECK(options.bucket_bytes >= options.element_bytes && options.element_bytes > 0, "a bucket of ", options.bucket_bytes,
                 " bytes");
    plan_.options = options;
    plan_.stats.sent_bytes.resize(source.size());
    plan_.stats.received_bytes.resize(source.size());
    for (size_t r = 0; r < source.size(); ++r)
      for (size_t i = 0; i < source[r].size(); ++i)
        holders_[source[r][i].name].push_back({static_cast<int>(r), static_cast<int64_t>(i), &source[r][i]});
  }

  Plan run() {
    for (int to = 0; to < std::ssize(target_); ++to)
      for (int64_t i = 0; i < std::ssize(target_[static_cast<size_t>(to)]); ++i) fetch(to, i);
    fill_buckets();
    return std::move(plan_);
  }

 private:
  int64_t bytes(const Box& box) const { return box.num_elements() * plan_.options.element_bytes; }

  /// Plans one wanted box: own parts first, then the rest piece by piece.
  void fetch(int to, int64_t target_index) {
    const TensorSpec& want = target_[static_cast<size_t>(to)][static_cast<size_t>(target_index)];
    if (want.box.num_elements() == 0) return;
    const auto found = holders_.find(want.name);
    TANDEM_CHECK(found != holders_.end(), "nobody holds ", want.name);
    const std::vector<Holder>& holders = found->second;
    std::vector<Box> missing = {want.box};
    for (const Holder& h : holders) {
      TANDEM_CHECK(h.spec->shape == want.shape, want.name, " has two shapes");
      if (h.rank == to) cut(missing, h.spec->box, [&](const Box& part) {
        plan_.copies.push_back({to, to, h.index, target_index, part, 0});
        plan_.stats.bytes_copied += bytes(part);
      });
    }
    for (const Box& box : missing) plan_.stats.lower_bound_bytes += bytes(box);
    for (const Holder& h : holders) {
      if (missing.empty()) return;
      cut(missing, h.spec->box, [&](const Box& part) { send(holders, part, to, target_index); });
    }
    TANDEM_CHECK(missing.empty(), "nobody holds a part of ", want.name);
  }

  /// Removes `hole` from the boxes and tells which parts it met.
  template <class Met>
  static void cut(std::vector<Box>& boxes, const Box& hole, Met met) {
    std::vector<Box> rest;
    for (const Box& box : boxes) {
      const auto part = intersect(box, hole);
      if (part) met(*part);
      for (Box& outside : part ? subtract(box, *part) : std::vector<Box>{box}) rest.push_back(std::move(outside));
    }
    boxes = std::move(rest);
  }

  void send(const std::vector<Holder>& holders, const Box& part, int to, int64_t target_index) {
    if (bytes(part) > plan_.options.bucket_bytes) {
      // Halves along the first dimension that can be halved, so that halves of a row-major tensor stay contiguous.
      size_t dim = 0;
      while (part.extent(dim) == 1) ++dim;
      Box low = part, high = part;
      low.end[dim] = high.begin[dim] = part.begin[dim] + part.extent(dim) / 2;
      send(holders, low, to, target_index);
      send(holders, high, to, target_index);
      return;
    }
    // Of equally loaded holders the next one after the receiver: replicas then serve different receivers.
    const int size = static_cast<int>(target_.size());
    auto cost = [&](const Holder& h) {
      return std::pair(plan_.stats.sent_bytes[static_cast<size_t>(h.rank)], (h.rank - to + size) % size);
    };
    const Holder* best = nullptr;
    for (const Holder& h : holders)
      if (contains(h.spec->box, part) && (!best || cost(h) < cost(*best))) best = &h;
    plan_.transfers.push_back({best->rank, to, best->index, target_index, part, 0});
    plan_.stats.sent_bytes[static_cast<size_t>(best->rank)] += bytes(part);
    plan_.stats.received_bytes[static_cast<size_t>(to)] += bytes(part);
    plan_.stats.bytes_total += bytes(part);
  }

  /// Gives each transfer the first bucket, not before those its two ranks have reached, in which both have room.
  void fill_buckets() {
    struct Reached {
      int64_t bucket = 0, bytes = 0;
    };
    // Receivers were planned one after the other; taken in turns, they share the buckets.
    std::vector<int64_t> turn(target_.size(), 0);
    std::vector<std::pair<int64_t, size_t>> order;
    for (size_t i = 0; i < plan_.transfers.size(); ++i) order.emplace_back(turn[static_cast<size_t>(plan_.transfers[i].to)]++, i);
    std::sort(order.begin(), order.end());
    std::vector<Reached> reached(target_.size());
    for (const auto& [when, i] : order) {
      Transfer& t = plan_.transfers[i];
      Reached &from = reached[static_cast<size_t>(t.from)], &to = reached[static_cast<size_t>(t.to)];
      const int64_t size = bytes(t.box);
      int64_t bucket = std::max(from.bucket, to.bucket);
      auto full = [&](const Reached& r) { return r.bucket == bucket && r.bytes + size > plan_.options.bucket_bytes; };
      while (full(from) || full(to)) ++bucket;
      for (Reached* r : {&from, &to}) {
        if (r->bucket != bucket) *r = {bucket, 0};
        r->bytes += size;
        plan_.stats.staging_peak_bytes = std::max(plan_.stats.staging_peak_bytes, r->bytes);
      }
      t.bucket = bucket;
      plan_.num_buckets = std::max(plan_.num_buckets, bucket + 1);
    }
    std::stable_sort(plan_.transfers.begin(), plan_.transfers.end(),
                     [](const Transfer& a, const Transfer& b) { return a.bucket < b.bucket; });
  }

  const RankBoxes& target_;
  std::map<std::string, std::vector<Holder>> holders_;
  Plan plan_;
};

}  // namespace

std::vector<Box> subtract(const Box& box, const Box& hole) {
  const auto common = intersect(box, hole);
  if (!common) return {box};
  std::vector<Box> parts;
  Box rest = box;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    if (rest.begin[d] < common->begin[d]) {
      parts.push_back(rest);
      parts.back().end[d] = rest.begin[d] = common->begin[d];
    }
    if (common->end[d] < rest.end[d]) {
      parts.push_back(rest);
      parts.back().begin[d] = rest.end[d] = common->end[d];
    }
  }
  return parts;
}

Plan make_plan(const RankBoxes& source, const RankBoxes& target, const PlanOptions& options) {
  if (equal(source, target)) {
    Plan plan;
    plan.alias = true;
    plan.options = options;
    plan.stats.sent_bytes.resize(source.size());
    plan.stats.received_bytes.resize(source.size());
    return plan;
  }
  return Planner(source, target, options).run();
}

}  // namespace tandem::reshard
