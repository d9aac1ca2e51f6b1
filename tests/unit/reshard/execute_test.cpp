// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/execute.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "box_tables.h"
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

TEST(Execute, GivesWhatDirectSlicingGivesBitForBit) {
  constexpr uint64_t kSeed = 815;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    RandomStream random(kSeed, trial);
    const int ranks = static_cast<int>(1 + random.below(4));
    const Shapes shapes = random_shapes(random);
    const auto source = random_layout(shapes, ranks, random), target = random_layout(shapes, ranks, random);
    const at::ScalarType dtype = trial % 2 == 0 ? at::kFloat : at::kBFloat16;
    const int64_t width = trial % 2 == 0 ? 4 : 2;
    const PlanOptions options = {.element_bytes = width, .bucket_bytes = width * (1 + random.below(60)), .ranks_per_node = 2,
                                 .overlap = trial % 4 < 2};
    const Plan plan = make_plan(table_of(ranks, source, target), options, trial % 3 == 0 ? Mode::kMulticast : Mode::kDirect);
    if (plan.alias) continue;
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial);
    comm::run_local(ranks, 30, [&](comm::Group& world) {
      std::vector<Held> held, wanted;
      for (int32_t n = 0; n < std::ssize(shapes.of); ++n) {
        const at::Tensor all = whole(shapes.of[static_cast<size_t>(n)], n, dtype);
        // The source is a view into a larger tensor, the target starts as rubbish.
        for (const Piece& p : source[static_cast<size_t>(n)])
          if (p.rank == world.rank()) held.push_back({n, p.box, slice(all, p.box)});
        for (const Piece& p : target[static_cast<size_t>(n)])
          if (p.rank == world.rank()) wanted.push_back({n, p.box, at::full(p.box.shape(), -7, dtype)});
      }
      const Moved moved = execute(part_of(plan, world.rank()), world, held, wanted, {dtype});
      for (const Held& w : wanted)
        EXPECT_TRUE(at::equal(w.tensor, slice(whole(shapes.of[static_cast<size_t>(w.number)], w.number, dtype), w.box))) << w.number;
      EXPECT_EQ(moved.sent_bytes, plan.stats.sent_bytes[world.rank()]);
      EXPECT_EQ(moved.received_bytes, plan.stats.received_bytes[world.rank()]);
      EXPECT_LE(moved.staging_peak_bytes, plan.options.bucket_bytes);
    });
  }
}

TEST(Execute, OfAnAliasMovesNothing) {
  RandomStream random(3, 3);
  const auto layout = random_layout(random_shapes(random), 2, random);
  auto one = comm::single();
  EXPECT_EQ(execute(part_of(make_plan(table_of(2, layout, layout), {}), 0), *one, {}, {}, {at::kFloat}).copied_bytes, 0);
}

}  // namespace
}  // namespace tandem::reshard
