// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/execute.h"
#include "tandem/reshard/plan_make.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include <tuple>

#include "../../counting_group.h"
#include "../../wired_group.h"
#include "box_tables.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::reshard {
namespace {

/// The global tensor of a number: values that are exact in bfloat16 only by chance, so bits are compared as integers.
at::Tensor whole(const std::vector<int64_t>& shape, int32_t number, at::ScalarType dtype) {
  return at::arange(Box::whole(shape).num_elements(), at::kDouble).mul(0.37).add(number).to(dtype).view(shape);
}

at::Tensor slice(const at::Tensor& whole, const Box& box) {
  at::Tensor t = whole;
  for (size_t d = 0; d < box.begin.size(); ++d) t = t.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
  return t;
}

/// Random tensors before and after, and the part of one rank in them.
struct Case {
  int ranks;
  Shapes shapes;
  std::vector<Holding> source, target;
  at::ScalarType source_dtype = at::kFloat, target_dtype = at::kFloat;

  Case(RandomStream& random, int least_ranks)
      : ranks(static_cast<int>(least_ranks + random.below(5 - least_ranks))),
        shapes(random_shapes(random)),
        source(random_layout(shapes, ranks, random)),
        target(random_layout(shapes, ranks, random)) {}

  at::ScalarType narrower() const { return source_dtype == at::kBFloat16 ? source_dtype : target_dtype; }
  int64_t width() const { return static_cast<int64_t>(c10::elementSize(narrower())); }
  Plan plan(PlanOptions options, Mode mode) const {
    options.element_bytes = width();
    return make_plan(table_of(ranks, source, target), options, mode);
  }
  at::Tensor values(int32_t number) const { return whole(shapes.of[static_cast<size_t>(number)], number, source_dtype); }

  /// The source is a view into a larger tensor.
  std::vector<Held> held(int rank) const {
    std::vector<Held> all;
    for (int32_t n = 0; n < std::ssize(source); ++n)
      for (const Piece& p : source[static_cast<size_t>(n)])
        if (p.rank == rank) all.push_back({n, p.box, slice(values(n), p.box)});
    return all;
  }
  /// The target starts as rubbish.
  std::vector<Held> wanted(int rank) const {
    std::vector<Held> all;
    for (int32_t n = 0; n < std::ssize(target); ++n)
      for (const Piece& p : target[static_cast<size_t>(n)])
        if (p.rank == rank) all.push_back({n, p.box, at::full(p.box.shape(), kRubbish, target_dtype)});
    return all;
  }
  void expect_arrived(const std::vector<Held>& wanted) const {
    for (const Held& w : wanted)
      EXPECT_TRUE(at::equal(w.tensor, slice(values(w.number), w.box).to(narrower()).to(target_dtype))) << w.number;
  }

  static constexpr double kRubbish = -7;
};

constexpr Mode kModes[] = {Mode::kDirect, Mode::kMulticast, Mode::kGatherFirst};

TEST(Execute, GivesWhatDirectSlicingGivesBitForBit) {
  constexpr uint64_t kSeed = 815;
  const std::pair<at::ScalarType, at::ScalarType> dtypes[] = {
      {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}, {at::kBFloat16, at::kFloat}};
  for (uint64_t trial = 0; trial < 400; ++trial) {
    RandomStream random(kSeed, trial);
    Case c(random, 1);
    std::tie(c.source_dtype, c.target_dtype) = dtypes[trial % 4];
    PlanOptions options = {.ranks_per_node = 2, .overlap = trial % 8 < 4, .checksums = trial % 16 < 8};
    options.bucket_bytes = c.width() * (1 + random.below(60)) + (options.checksums ? 8 : 0);
    const Plan plan = c.plan(options, kModes[trial % 3]);
    if (plan.alias) continue;
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial);
    comm::run_local(c.ranks, 30, [&](comm::Group& world) {
      const std::vector<Held> wanted = c.wanted(world.rank());
      const Moved moved = execute(part_of(plan, world.rank()), world, c.held(world.rank()), wanted, {c.narrower()});
      c.expect_arrived(wanted);
      EXPECT_EQ(moved.sent_bytes, plan.stats.sent_bytes[world.rank()]);
      EXPECT_LE(moved.staging_peak_bytes, plan.stats.staging_peak_bytes);
      EXPECT_LE(moved.staging_peak_bytes, plan.options.bucket_bytes);
    });
  }
}

TEST(Execute, GivesThroughRelaysWhatTheyGot) {
  // Rank 0 holds a tensor that all others want, who are on nodes of their own, alone or in pairs.
  RandomStream random(1, 1);
  Case c(random, 1);
  const Box box{{0, 0}, {64, 128}};
  c.ranks = 7, c.shapes.of = {{64, 128}};
  c.source = {{{0, box}}}, c.target = {{}};
  for (int r = 0; r < c.ranks; ++r) c.target[0].push_back({r, box});
  for (int trial = 0; trial < 16; ++trial) {
    PlanOptions options = {.bucket_bytes = 10000, .ranks_per_node = 1 + trial % 2, .overlap = trial % 4 < 2, .checksums = trial % 8 < 4};
    const Plan plan = c.plan(options, trial < 8 ? Mode::kMulticast : Mode::kGatherFirst);
    const auto node = [&](int rank) { return options.node_of(rank); };
    const auto is_relayed = [&](const Transfer& t) { return node(t.from) != 0 && node(t.from) != node(t.to); };
    EXPECT_TRUE(std::ranges::any_of(plan.transfers, is_relayed)) << trial;
    comm::run_local(c.ranks, 30, [&](comm::Group& world) {
      const std::vector<Held> wanted = c.wanted(world.rank());
      const Moved moved = execute(part_of(plan, world.rank()), world, c.held(world.rank()), wanted, {c.narrower()});
      c.expect_arrived(wanted);
      EXPECT_LE(moved.staging_peak_bytes, options.bucket_bytes);
    });
  }
}

/// What a bucket reads or writes, as views.
std::vector<at::Tensor> views(const std::vector<Held>& held, const RankPlan::Bucket& bucket, bool is_source) {
  std::vector<at::Tensor> all;
  const auto add = [&](int32_t number, const Box& box) {
    for (const Held& h : held) {
      if (h.number != number || intersect(h.box, box) != box) continue;
      at::Tensor part = h.tensor;
      for (size_t d = 0; d < box.begin.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), box.begin[d] - h.box.begin[d], box.extent(d));
      all.push_back(part);
      return;
    }
    ADD_FAILURE() << "no box for a part of tensor " << number;
  };
  for (const RankPlan::Copy& copy : bucket.copies) add(copy.number, copy.box);
  for (const RankPlan::Move& m : is_source ? bucket.sends : bucket.receives)
    if (!(is_source && m.from_target))
      for (const Box& box : m.boxes) add(m.number, box);
  return all;
}

// What the memory of a switch rests on: a target may get its pages in before_bucket, and a source lose them in after_bucket of the last
// bucket that reads it.
TEST(Execute, TellsBeforeATargetIsWrittenAndOnceASourceIsReadForTheLastTime) {
  constexpr uint64_t kSeed = 816;
  size_t num_buckets = 0;
  for (uint64_t trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial);
    RandomStream random(kSeed, trial);
    const Case c(random, 1);
    const PlanOptions options = {.bucket_bytes = 4 * (1 + random.below(60)), .ranks_per_node = 2, .overlap = trial % 2 == 0};
    const Plan plan = c.plan(options, kModes[trial % 3]);
    if (plan.alias) continue;
    comm::run_local(c.ranks, 30, [&](comm::Group& world) {
      const RankPlan part = part_of(plan, world.rank());
      std::vector<Held> held = c.held(world.rank());
      for (Held& h : held) h.tensor = h.tensor.clone();
      const std::vector<Held> wanted = c.wanted(world.rank());
      size_t next = 0;
      const auto before = [&](size_t b) {
        EXPECT_EQ(b, next);
        for (const at::Tensor& t : views(wanted, part.buckets[b], false)) EXPECT_TRUE(t.eq(Case::kRubbish).all().item<bool>());
      };
      const auto after = [&](size_t b) {
        EXPECT_EQ(b, next++);
        for (const at::Tensor& t : views(wanted, part.buckets[b], false)) EXPECT_FALSE(t.eq(Case::kRubbish).any().item<bool>());
        std::vector<at::Tensor> kept;  // is read later: put back after the rest is spoiled
        for (size_t later = b + 1; later < part.buckets.size(); ++later)
          for (const at::Tensor& t : views(held, part.buckets[later], true)) kept.push_back(t);
        std::vector<at::Tensor> values;
        for (const at::Tensor& t : kept) values.push_back(t.clone());
        // Of a bucket that is packed already nothing is needed, but the thread that packs is this one: nothing races.
        for (const at::Tensor& t : views(held, part.buckets[b], true)) t.fill_(99);
        for (size_t i = 0; i < kept.size(); ++i) kept[i].copy_(values[i]);
      };
      (void)execute(part, world, held, wanted, {at::kFloat, before, after});
      EXPECT_EQ(next, part.buckets.size());
      c.expect_arrived(wanted);
      if (world.rank() == 0) num_buckets += next;
    });
  }
  EXPECT_GT(num_buckets, 500u);
}

TEST(Execute, OfEqualLayoutsAndAnotherDtypeCopiesInBucketsWithoutACall) {
  const Holding holding = {{0, {{0}, {64}}}, {1, {{64}, {128}}}};
  const Plan plan = make_plan(table_of(2, {holding}, {holding}), {.element_bytes = 2, .bucket_bytes = 32, .may_alias = false});
  EXPECT_FALSE(plan.alias);
  EXPECT_EQ(plan.num_calls, 0);
  EXPECT_EQ(plan.num_buckets, 4);  // 128 bytes of each rank
  const auto single = comm::single();
  test::CountingGroup alone(*single);
  const at::Tensor values = whole({128}, 0, at::kFloat), got = at::full({64}, -7, at::kBFloat16);
  const Held held[] = {{0, holding[0].box, values.narrow(0, 0, 64)}}, wanted[] = {{0, holding[0].box, got}};
  const Moved moved = execute(part_of(plan, 0), alone, held, wanted, {at::kBFloat16});
  EXPECT_TRUE(at::equal(got, values.narrow(0, 0, 64).to(at::kBFloat16)));
  EXPECT_EQ(alone.traffic().of(comm::Operation::kAllToAllV).calls, 0);
  EXPECT_EQ(moved.staging_peak_bytes, 0);
}

using Change = std::function<void(std::span<std::byte> received)>;

/// Two ranks exchange their halves of three tensors of 64 elements, in several buckets.
struct Exchange {
  std::vector<Holding> source, target;
  Plan plan;

  explicit Exchange(bool checksums) {
    for (int n = 0; n < 3; ++n) {
      const Box low{{0}, {32}}, high{{32}, {64}};
      source.push_back({{0, low}, {1, high}});
      target.push_back({{0, high}, {1, low}});
    }
    plan = make_plan(table_of(2, source, target), {.element_bytes = 4, .bucket_bytes = 256, .overlap = true, .checksums = checksums});
  }
  void run(comm::Group& world, const ExecuteOptions& options) const {
    std::vector<Held> held, wanted;
    for (int32_t n = 0; n < 3; ++n)
      for (const auto& [layout, all] : {std::pair(&source, &held), std::pair(&target, &wanted)}) {
        const Box& box = (*layout)[static_cast<size_t>(n)][static_cast<size_t>(world.rank())].box;
        all->push_back({n, box, slice(whole({64}, n, at::kFloat), box).clone()});
      }
    (void)execute(part_of(plan, world.rank()), world, held, wanted, options);
  }
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Execute, NamesTheMessageWhoseChecksumIsWrong) {
  const Exchange exchange(true);
  ASSERT_GT(exchange.plan.num_calls, 2);
  const auto run = [&](size_t spoiled_call) {
    return error_of([&] {
      comm::run_local(2, 30, [&](comm::Group& world) {
        size_t call = 0;
        test::WiredGroup wire(world, {nullptr, [&](std::span<std::byte> receive) {
                                        if (world.rank() == 1 && call++ == spoiled_call && !receive.empty())
                                          receive[receive.size() / 2] ^= std::byte{1};
                                      }});
        exchange.run(wire, {at::kFloat});
      });
    });
  };
  EXPECT_EQ(run(99), "");
  const RankPlan part = part_of(exchange.plan, 1);
  size_t num_messages = 0;
  for (size_t bucket = 0; bucket < part.num_calls; ++bucket) {
    const auto& moves = part.buckets[bucket].receives;
    if (moves.empty()) continue;
    ++num_messages;
    EXPECT_EQ(run(bucket), join_text("rank 1: switch: bucket ", bucket, " from rank 0 to rank 1 with tensors ", moves.front().number,
                                     " to ", moves.back().number, " is not what was sent: its checksum differs"));
  }
  EXPECT_GT(num_messages, 1u);
}

TEST(Execute, EndsOnBothSidesWithTheFirstCause) {
  const Exchange exchange(false);
  const auto seconds_of = [&](const auto& make_options, const Change& change, const std::string& cause) {
    const double begin_s = now_s();
    EXPECT_EQ(error_of([&] {
                comm::run_local(2, 30, [&](comm::Group& world) {
                  test::WiredGroup wire(world, {nullptr, [&](std::span<std::byte> bytes) {
                                                  if (world.rank() == 1) change(bytes);
                                                }});
                  exchange.run(wire, make_options(world.rank()));
                });
              }),
              cause);
    return now_s() - begin_s;
  };
  // The side that packs fails on one rank while the other waits for its bucket.
  const auto failing = [](int rank) {
    return ExecuteOptions{at::kFloat, [rank](size_t bucket) {
                            if (rank == 1 && bucket == 1) throw UserError("disk", "is full", "expected room");
                          }};
  };
  EXPECT_LT(seconds_of(failing, [](std::span<std::byte>) {}, "disk: is full (expected room)"), 10);
  // The transfer fails.
  const auto plain = [](int) { return ExecuteOptions{at::kFloat}; };
  EXPECT_LT(seconds_of(plain, [](std::span<std::byte>) { throw PeerError("the cable broke"); }, "the cable broke"), 10);
}

TEST(Execute, OfAnAliasMovesNothing) {
  RandomStream random(3, 3);
  const auto layout = random_layout(random_shapes(random), 2, random);
  auto one = comm::single();
  EXPECT_EQ(execute(part_of(make_plan(table_of(2, layout, layout), {}), 0), *one, {}, {}, {at::kFloat}).staging_peak_bytes, 0);
}

}  // namespace
}  // namespace tandem::reshard
