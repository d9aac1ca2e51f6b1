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

/// The global tensor of a name: values that are exact in bfloat16 only by chance, so bits are compared as integers.
at::Tensor whole(const TensorSpec& spec, at::ScalarType dtype) {
  int64_t count = 1;
  for (int64_t n : spec.shape) count *= n;
  return (at::arange(count, at::kDouble).mul(0.37).add(spec.name.back())).to(dtype).view(spec.shape);
}

at::Tensor slice(const TensorSpec& spec, at::ScalarType dtype) {
  at::Tensor t = whole(spec, dtype);
  for (size_t d = 0; d < spec.shape.size(); ++d) t = t.narrow(static_cast<int64_t>(d), spec.box.begin[d], spec.box.extent(d));
  return t;
}

TEST(Execute, GivesWhatDirectSlicingGivesBitForBit) {
  constexpr uint64_t kSeed = 815;
  for (uint64_t trial = 0; trial < 150; ++trial) {
    RandomStream random(kSeed, trial);
    const int ranks = static_cast<int>(1 + random.below(4));
    const Shapes shapes = random_shapes(random);
    const RankBoxes source = random_layout(shapes, ranks, random), target = random_layout(shapes, ranks, random);
    const at::ScalarType dtype = trial % 2 == 0 ? at::kFloat : at::kBFloat16;
    const int64_t width = trial % 2 == 0 ? 4 : 2;
    const Plan plan = make_plan(source, target, {.element_bytes = width, .bucket_bytes = width * (1 + random.below(60))});
    if (plan.alias) continue;
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial);
    comm::run_local(ranks, 30, [&](comm::Group& world) {
      std::vector<Held> held, wanted;
      // The source is a view into a larger tensor, the target starts as rubbish.
      for (const TensorSpec& s : source[world.rank()]) held.push_back({s, slice(s, dtype)});
      for (const TensorSpec& s : target[world.rank()]) wanted.push_back({s, at::full(s.box.shape(), -7, dtype)});
      const Moved moved = execute(plan, world, held, wanted);
      for (const Held& w : wanted) EXPECT_TRUE(at::equal(w.tensor, slice(w.spec, dtype))) << w.spec.name;
      EXPECT_EQ(moved.sent_bytes, plan.stats.sent_bytes[world.rank()]);
      EXPECT_EQ(moved.received_bytes, plan.stats.received_bytes[world.rank()]);
      EXPECT_LE(moved.staging_peak_bytes, plan.options.bucket_bytes);
    });
  }
}

TEST(Execute, OfAnAliasMovesNothing) {
  RandomStream random(3, 3);
  const RankBoxes layout = random_layout(random_shapes(random), 2, random);
  const Plan plan = make_plan(layout, layout, {});
  auto one = comm::single();
  EXPECT_EQ(execute(plan, *one, {}, {}).copied_bytes, 0);
}

}  // namespace
}  // namespace tandem::reshard
