// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "../../box_elements.h"
#include "box_tables.h"
#include "tandem/base/error.h"
#include "tandem/reshard/plan_make.h"

namespace tandem::reshard {
namespace {

using test::each_element, test::elements_of;

/// A [rows, 4] matrix in equal slices along dimension 0; rank r holds slice r % num_slices.
Holding row_slices(int ranks, int num_slices, int64_t rows) {
  Holding holding;
  for (int r = 0; r < ranks; ++r) {
    const int64_t slice = r % num_slices, height = rows / num_slices;
    holding.push_back({r, {{slice * height, 0}, {(slice + 1) * height, 4}}});
  }
  return holding;
}

TEST(Plan, OfEqualLayoutsIsEmpty) {
  const Plan plan = make_plan(table_of(4, {row_slices(4, 2, 8)}, {row_slices(4, 2, 8)}), {});
  EXPECT_TRUE(plan.alias);
  EXPECT_TRUE(plan.transfers.empty());
  EXPECT_TRUE(part_of(plan, 1).buckets.empty());
  EXPECT_EQ(plan.stats.bytes_total, 0);
}

TEST(Plan, TakesWhatARankHoldsAndBalancesTheSenders) {
  // Two replicas of two halves become four whole copies: each rank lacks one half, which two ranks hold.
  const Plan plan = make_plan(table_of(4, {row_slices(4, 2, 8)}, {row_slices(4, 1, 8)}), {.element_bytes = 2});
  EXPECT_EQ(plan.stats.bytes_total, 4 * 16 * 2);
  EXPECT_EQ(plan.stats.bytes_kept, 4 * 16 * 2);
  for (int64_t sent : plan.stats.sent_bytes) EXPECT_EQ(sent, 32);
}

TEST(Plan, HoldersOfABigFragmentSendEqualSharesOfIt) {
  // Three hold it and one lacks it; rows of 4 KiB, so no share is more than a row above another.
  const Box whole{{0, 0}, {1000, 1024}};
  const Holding source = {{0, whole}, {1, whole}, {2, whole}}, target = {{3, whole}};
  const Plan plan = make_plan(table_of(4, {source}, {target}), {.element_bytes = 4});
  for (int r = 0; r < 3; ++r) EXPECT_NEAR(plan.stats.sent_bytes[r], 1000 * 4096 / 3, 4096);
  EXPECT_EQ(plan.stats.received_bytes[3], 1000 * 4096);
}

TEST(Plan, BucketsBoundWhatARankStages) {
  const Plan plan = make_plan(table_of(2, {row_slices(2, 2, 64)}, {row_slices(2, 1, 64)}), {.element_bytes = 2, .bucket_bytes = 64});
  EXPECT_LE(plan.stats.staging_peak_bytes, 64);
  EXPECT_EQ(plan.stats.bytes_total, 2 * 32 * 4 * 2);
  EXPECT_GE(plan.num_buckets, 2 * 2 * 32 * 4 * 2 / 2 / 64);
}

TEST(Plan, RefusesABoxThatNobodyHolds) {
  Holding source = row_slices(2, 2, 8);
  source.pop_back();
  EXPECT_THROW(make_plan(table_of(2, {source}, {row_slices(2, 1, 8)}), {}), InternalError);
}

TEST(Plan, ANodeTakesFromItsOwnHolderAndMulticastCrossesOnce) {
  // Four nodes of two. Node 0 holds; all want.
  const Box whole{{0, 0}, {64, 64}};
  Holding source = {{0, whole}}, target;
  for (int r = 0; r < 8; ++r) target.push_back({r, whole});
  const Table table = table_of(8, {source}, {target});
  const PlanOptions options = {.element_bytes = 8, .bucket_bytes = 96 << 10, .ranks_per_node = 2, .links = {.call_s = 0}};
  const int64_t bytes = 64 * 64 * 8;
  const Plan direct = make_plan(table, options, Mode::kDirect), multicast = make_plan(table, options, Mode::kMulticast);
  EXPECT_EQ(direct.stats.bytes_across_nodes, 6 * bytes);
  EXPECT_EQ(multicast.stats.bytes_across_nodes, 3 * bytes);
  for (const Plan* plan : {&direct, &multicast}) {
    EXPECT_EQ(plan->stats.bytes_total, 7 * bytes);
    EXPECT_EQ(plan->stats.lower_bound_across_nodes_bytes, 3 * bytes);
  }
  EXPECT_LT(multicast.stats.modelled_s, direct.stats.modelled_s);
  EXPECT_EQ(make_plan(table, options).mode, Mode::kMulticast);
}

TEST(Plan, GatherFirstLetsThoseOnTheHoldersNodeServeTheOthers) {
  // Two nodes of four. Rank 0 holds; all want.
  const Box whole{{0, 0}, {64, 64}};
  const Holding source = {{0, whole}};
  Holding target;
  for (int r = 0; r < 8; ++r) target.push_back({r, whole});
  const Table table = table_of(8, {source}, {target});
  const PlanOptions options = {.element_bytes = 8, .bucket_bytes = 96 << 10, .ranks_per_node = 4, .links = {.call_s = 0}};
  const double bytes = 64 * 64 * 8;
  const Plan multicast = make_plan(table, options, Mode::kMulticast), gather = make_plan(table, options, Mode::kGatherFirst);
  // Rank 0 gives three neighbours all of it and, in the one mode, the other node all of it; in the other its neighbours do that.
  EXPECT_EQ(multicast.stats.sent_bytes[0], 4 * bytes);
  EXPECT_EQ(gather.stats.sent_bytes[0], 3 * bytes);
  for (int r = 1; r < 4; ++r) EXPECT_NEAR(gather.stats.sent_bytes[r], bytes / 3, bytes / 64);
  EXPECT_EQ(gather.stats.bytes_total, 7 * bytes);
  EXPECT_EQ(gather.stats.bytes_across_nodes, bytes);
  EXPECT_LT(gather.stats.modelled_s, multicast.stats.modelled_s);
  EXPECT_EQ(make_plan(table, options).mode, Mode::kGatherFirst);
}

TEST(Plan, ANodeRelaysWhatItsHoldersWouldSendTooOften) {
  // Nine nodes of two. The ranks of node 0 hold one half each; all want both.
  const Box whole{{0, 0}, {64, 64}};
  const Holding source = {{0, {{0, 0}, {32, 64}}}, {1, {{32, 0}, {64, 64}}}};
  Holding target;
  for (int r = 0; r < 18; ++r) target.push_back({r, whole});
  const PlanOptions options = {.element_bytes = 64, .bucket_bytes = 1 << 20, .ranks_per_node = 2};
  const double bytes = 64 * 64 * 64;
  const Plan plan = make_plan(table_of(18, {source}, {target}), options, Mode::kMulticast);
  // Each sends its half to its neighbour and to one node. That node's two ranks and each holder then share the way to the other seven; but
  // those two have half of the whole to give each other, which counts first. Without relays 4.5 wholes.
  for (int r : {0, 1}) EXPECT_NEAR(plan.stats.sent_bytes[r], bytes * 11 / 6, bytes / 32) << r;
  EXPECT_EQ(plan.stats.bytes_total, 17 * bytes);
  EXPECT_EQ(plan.stats.bytes_across_nodes, 8 * bytes);
  EXPECT_LE(plan.stats.staging_peak_bytes, options.bucket_bytes);
}

TEST(Plan, OfRelaysEachSendsAsMuch) {
  // Four nodes of two. Rank 0 holds; all want. Its neighbour and one node get it first, and the four send it to the other two nodes.
  const Box whole{{0, 0}, {256, 64}};
  Holding target;
  for (int r = 0; r < 8; ++r) target.push_back({r, whole});
  const PlanOptions options = {.element_bytes = 8, .ranks_per_node = 2};
  const double bytes = 256 * 64 * 8;
  const Plan plan = make_plan(table_of(8, {{{0, whole}}}, {target}), options, Mode::kGatherFirst);
  for (int r = 0; r < 4; ++r) EXPECT_NEAR(plan.stats.sent_bytes[r], bytes * 5 / 4, bytes / 32) << r;
}

TEST(Plan, BucketsShareTheWayAcrossNodesEvenly) {
  // Two nodes of four. Rank 0 has 16 tensors for rank 4 of the other node, rank 1 has 64 for its neighbour: eight buckets of eight.
  const Box whole{{0, 0}, {64, 64}};
  std::vector<Holding> source, target;
  for (int t = 0; t < 80; ++t) source.push_back({{t < 16 ? 0 : 1, whole}}), target.push_back({{t < 16 ? 4 : 2, whole}});
  const PlanOptions options = {.element_bytes = 4, .bucket_bytes = 8 * 64 * 64 * 4, .ranks_per_node = 4};
  const Plan plan = make_plan(table_of(8, source, target), options, Mode::kDirect);
  std::map<int32_t, int> far;
  for (const Transfer& t : plan.transfers)
    if (t.to == 4) ++far[t.bucket];
  EXPECT_EQ(plan.num_calls, 8);
  for (int32_t b = 0; b < 8; ++b) EXPECT_EQ(far[b], 2) << b;
}

/// What ranks hold and are given, element by element, as a plan is followed.
class Ledger {
 public:
  using Element = std::tuple<int, int32_t, int64_t>;  // rank, tensor, index

  Ledger(const std::vector<Holding>& source, const std::vector<Holding>& target) {
    for (const auto& [layout, elements] : {std::pair(&source, &held_), std::pair(&target, &wanted_)})
      for (int32_t t = 0; t < std::ssize(*layout); ++t)
        for (const Piece& piece : (*layout)[static_cast<size_t>(t)])
          each_element(piece.box, [&](int64_t e) { elements->insert({piece.rank, t, e}); });
  }

  void follow(const Plan& plan, int num_ranks) {
    std::vector<RankPlan> parts;
    for (int r = 0; r < num_ranks; ++r) parts.push_back(part_of(plan, r));
    std::map<int, int32_t> last_copied;  // by rank
    std::vector<Element> arrived;  // in the bucket before: it is unpacked after this one is packed
    for (size_t b = 0; b < static_cast<size_t>(plan.num_buckets); ++b) {
      std::vector<Element> under_way;
      for (int r = 0; r < num_ranks; ++r) {
        const RankPlan::Bucket& bucket = parts[static_cast<size_t>(r)].buckets[b];
        for (const RankPlan::Copy& copy : bucket.copies) {
          EXPECT_GE(copy.number, std::exchange(last_copied[r], copy.number)) << "copies go along the table";
          each_element(copy.box, [&](int64_t e) {
            EXPECT_TRUE(held_.contains({r, copy.number, e}));
            ++given_[{r, copy.number, e}];
          });
        }
        EXPECT_LE(staged(parts[static_cast<size_t>(r)], b, plan), plan.stats.staging_peak_bytes);
        EXPECT_TRUE(b < part_of(plan, r).num_calls || (bucket.sends.empty() && bucket.receives.empty()));
        for (const RankPlan::Move& m : bucket.sends) {
          EXPECT_NE(m.peer, r);
          for (int64_t e : elements_of(m.boxes)) {
            EXPECT_TRUE(m.from_target ? given_.contains({r, m.number, e}) : held_.contains({r, m.number, e}));
            EXPECT_FALSE(held_.contains({m.peer, m.number, e})) << "sent to a rank that holds it";
            under_way.push_back({m.peer, m.number, e});
          }
        }
        EXPECT_EQ(messages_to(parts, b, r), messages_from(bucket));
      }
      if (!plan.options.overlap) arrived = std::exchange(under_way, {});
      for (const Element& e : arrived) ++given_[e];
      arrived = std::move(under_way);
    }
    for (const Element& e : arrived) ++given_[e];
  }

  void expect_each_wanted_once() const {
    EXPECT_EQ(given_.size(), wanted_.size());
    for (const auto& [element, times] : given_) {
      EXPECT_TRUE(wanted_.contains(element));
      EXPECT_EQ(times, 1);
    }
  }

  int64_t lacking() const {
    return std::ranges::count_if(wanted_, [&](const Element& e) { return !held_.contains(e); });
  }

 private:
  using Message = std::tuple<int, int32_t, std::vector<int64_t>>;

  /// While bucket b travels, by the definition: all its messages, and those unpacked or packed meanwhile.
  static int64_t staged(const RankPlan& part, size_t b, const Plan& plan) {
    int64_t beside = 0;
    if (plan.options.overlap && b > 0) beside = bytes_of(part.buckets[b - 1].receives, plan);
    if (plan.options.overlap && b + 1 < part.buckets.size()) beside = std::max(beside, bytes_of(part.buckets[b + 1].sends, plan));
    return bytes_of(part.buckets[b].sends, plan) + bytes_of(part.buckets[b].receives, plan) + beside;
  }
  static int64_t bytes_of(const std::vector<RankPlan::Move>& moves, const Plan& plan) {
    int64_t elements = 0;
    for (const RankPlan::Move& m : moves) elements += std::ssize(elements_of(m.boxes));
    return elements * plan.options.element_bytes;
  }
  static std::vector<Message> messages_from(const RankPlan::Bucket& bucket) {
    std::vector<Message> all;
    for (const RankPlan::Move& m : bucket.receives) all.emplace_back(m.peer, m.number, elements_of(m.boxes));
    return all;
  }
  static std::vector<Message> messages_to(const std::vector<RankPlan>& parts, size_t bucket, int to) {
    std::vector<Message> all;
    for (size_t r = 0; r < parts.size(); ++r)
      for (const RankPlan::Move& m : parts[r].buckets[bucket].sends)
        if (m.peer == to) all.emplace_back(static_cast<int>(r), m.number, elements_of(m.boxes));
    return all;
  }

  std::set<Element> held_, wanted_;
  std::map<Element, int> given_;
};

TEST(Plan, OfRandomTablesSendsEveryMissingElementOnce) {
  constexpr uint64_t kSeed = 4711;
  for (uint64_t trial = 0; trial < 1000; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial);
    RandomStream random(kSeed, trial);
    const int ranks = static_cast<int>(1 + random.below(9));
    const Shapes shapes = random_shapes(random);
    const auto source = random_layout(shapes, ranks, random), target = random_layout(shapes, ranks, random);
    PlanOptions options = {.element_bytes = 4, .bucket_bytes = 4 * (1 + random.below(40))};
    options.ranks_per_node = static_cast<int>(random.below(4));
    options.overlap = random.below(2) == 0, options.may_alias = random.below(2) == 0, options.checksums = random.below(2) == 0;
    if (trial % 2 == 0) options.element_bytes = 4096, options.bucket_bytes *= 1024;  // nothing is too small to be cut
    if (options.checksums) options.bucket_bytes += 8;
    const double least_s = busiest_rank_s(make_plan(table_of(ranks, source, target), options), ranks);
    for (const Mode mode : {Mode::kDirect, Mode::kMulticast, Mode::kGatherFirst}) {
      const Plan plan = make_plan(table_of(ranks, source, target), options, mode);
      if (plan.alias) continue;
      EXPECT_LE(least_s, busiest_rank_s(plan, ranks));
      Ledger ledger(source, target);
      ledger.follow(plan, ranks);
      ledger.expect_each_wanted_once();
      EXPECT_EQ(plan.stats.bytes_total, ledger.lacking() * options.element_bytes);
      EXPECT_EQ(plan.stats.lower_bound_bytes, plan.stats.bytes_total);
      EXPECT_LE(plan.stats.staging_peak_bytes, options.bucket_bytes);
      const int64_t over = plan.stats.bytes_across_nodes - plan.stats.lower_bound_across_nodes_bytes;
      EXPECT_TRUE(mode == Mode::kDirect ? over >= 0 : over == 0) << over << " bytes";
    }
  }
}

}  // namespace
}  // namespace tandem::reshard
