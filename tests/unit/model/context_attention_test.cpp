// SPDX-License-Identifier: Apache-2.0
// Attention over ranks against attention of one: the same trees, the same rows, forward and backward.

#include <gtest/gtest.h>

#include <mutex>

#include "backends.h"
#include "random_tensor.h"
#include "random_trees.h"
#include "tandem/comm/launch.h"
#include "tandem/device/process.h"
#include "tandem/model/op/context/context_attention.h"
#include "tandem/model/op/function.h"

namespace tandem::model::op {

using namespace kernel;
namespace {

using test::num_tokens, test::plain, test::plan_of;
using test::random_tensor;
using test::random_trees;

constexpr uint64_t kSeed = 20261122;

struct Pass {
  at::Tensor o, d_qkv;
};

struct Input {
  const Backend& backend;
  Trees trees;
  AttentionShape shape;
  at::Tensor qkv, d_o;

  Input(const Backend& by, Trees of, const AttentionShape& shape_of, c10::ScalarType dtype)
      : backend(by), trees(std::move(of)), shape(shape_of) {
    const int64_t T = num_tokens(trees);
    qkv = random_tensor({T, shape.width()}, kSeed, dtype);
    d_o = random_tensor({T, shape.q_width()}, kSeed + 1, dtype);
  }
};

Pass alone(const Input& in, bool parity) {
  const at::Tensor leaf = in.qkv.clone().requires_grad_(true);
  const Kernels kernels = plain(in.backend, in.qkv.scalar_type(), parity);
  const at::Tensor o = attention(kernels, leaf, plan_of(kernels, in.trees, leaf.size(0)), in.shape);
  o.backward(in.d_o);
  return {o.detach(), leaf.grad()};
}

// All ranks' rows, put back in the order of the packed tokens.
Pass over_ranks(const Input& in, int ranks, bool parity) {
  Pass all{at::full_like(in.d_o, NAN), at::full_like(in.qkv, NAN)};
  std::mutex mutex;
  comm::run_local(ranks, 60, [&](comm::Group& world) {
    device::set_compute_threads(1);
    const ContextParallel parallel{&world, context_share(in.trees, ranks)};
    const at::Tensor own = at::tensor(parallel.share.tokens(world.rank()), at::kLong);
    const at::Tensor leaf = in.qkv.index_select(0, own).requires_grad_(true);
    const Kernels kernels = plain(in.backend, in.qkv.scalar_type(), parity);
    const auto plan = std::make_shared<const ContextPlan>(context_plan(kernels, in.trees, parallel));
    const at::Tensor o = context_attention(kernels, leaf, plan, in.shape);
    o.backward(in.d_o.index_select(0, own));
    std::lock_guard lock(mutex);
    all.o.index_copy_(0, own, o.detach());
    all.d_qkv.index_copy_(0, own, leaf.grad());
  });
  return all;
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() / b.to(at::kDouble).abs().max().item<double>();
}

void check_by(const Backend& backend, const AttentionShape& shape, c10::ScalarType dtype) {
  const double bound = dtype == at::kFloat ? 1e-6 : 0.01;
  for (uint64_t trial = 0; trial < 6; ++trial)
    for (int ranks : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << " stream " << trial << ", " << ranks << " ranks");
      RandomStream random(kSeed, trial);
      const Input in(backend, random_trees(random, trial == 0 ? 8 : 400), shape, dtype);
      for (bool parity : {false, true}) {
        const Pass want = alone(in, parity), got = over_ranks(in, ranks, parity);
        if (parity) EXPECT_TRUE(at::equal(got.o, want.o)) << "row by row";
        else EXPECT_LE(apart(got.o, want.o), bound);
        EXPECT_LE(apart(got.d_qkv, want.d_qkv), bound) << (parity ? "row by row" : "");
      }
    }
}

void check(const AttentionShape& shape, c10::ScalarType dtype) {
  for (const Backend* backend : test::backends()) {
    SCOPED_TRACE(backend->name);
    check_by(*backend, shape, dtype);
  }
}

TEST(ContextAttention, AgreesWithOneRankInFloat32) { check({6, 2, 20}, at::kFloat); }

TEST(ContextAttention, AgreesWithOneRankInBfloat16) { check({6, 2, 20}, at::kBFloat16); }

TEST(ContextAttention, AgreesWithOneRankWhereEachHeadHasItsOwnKeys) { check({4, 4, 24, 0.3f}, at::kFloat); }

TEST(ContextAttention, AgreesWithOneRankWhereOneKeyServesAllHeads) { check({4, 1, 40, 0.2f}, at::kFloat); }

TEST(ContextAttention, RanksWithoutTokensTakePart) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Input in(cpu::backend(), {{0, 20, {}}, {20, 5, {}}}, {4, 2, 16}, dtype);
    const Pass want = alone(in, false), got = over_ranks(in, 4, false);
    EXPECT_LE(apart(got.o, want.o), dtype == at::kFloat ? 1e-6 : 0.01);
    EXPECT_LE(apart(got.d_qkv, want.d_qkv), dtype == at::kFloat ? 1e-6 : 0.01);
  }
}

// Chunks of whole blocks of query rows: the products are those of one rank, however many threads that one has.
TEST(ContextAttention, HasTheBitsOfOneRankWhereChunksAreWholeBlocks) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Input in(cpu::backend(), {{0, 1024, {512}}}, {4, 2, 32}, dtype);
    EXPECT_TRUE(at::equal(over_ranks(in, 2, false).o, alone(in, false).o));
  }
}

}  // namespace
}  // namespace tandem::model::op
