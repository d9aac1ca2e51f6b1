// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backends.h"
#include "random_tensor.h"
#include "tandem/model/op/function.h"

namespace tandem::model::op {

using namespace kernel;

namespace {

using test::backends, test::plain, test::plan_of, test::random_tensor;

// Causal attention of one sequence in double, as the formula says it; differentiable.
at::Tensor naive_sequence(const at::Tensor& rows, const AttentionShape& shape) {
  const int64_t n = rows.size(0), D = shape.head_dim, Q = shape.q_width(), kv = shape.num_kv_heads * D;
  const auto heads = [&](int64_t begin, int64_t width, int64_t count) { return rows.narrow(1, begin, width).reshape({n, count, D}).transpose(0, 1); };
  const at::Tensor q = heads(0, Q, shape.num_heads), k = heads(Q, kv, shape.num_kv_heads).repeat_interleave(shape.group(), 0),
                   v = heads(Q + kv, kv, shape.num_kv_heads).repeat_interleave(shape.group(), 0);
  const at::Tensor future = at::ones({n, n}, at::kBool).triu(1);
  const at::Tensor p = (at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(D))).masked_fill(future, -INFINITY).softmax(-1);
  return at::matmul(p, v).transpose(0, 1).reshape({n, Q});
}

// Each branch as the sequence it is, stem and all; the stem's rows are then left away.
at::Tensor naive(const at::Tensor& qkv, const Trees& trees, const AttentionShape& shape) {
  std::vector<at::Tensor> outputs;
  for (const Tree& tree : trees) {
    const at::Tensor stem = qkv.narrow(0, tree.begin, tree.stem);
    outputs.push_back(naive_sequence(stem, shape));
    int64_t begin = tree.begin + tree.stem;
    for (int64_t length : tree.branches) {
      outputs.push_back(naive_sequence(at::cat({stem, qkv.narrow(0, begin, length)}, 0), shape).narrow(0, tree.stem, length));
      begin += length;
    }
  }
  return at::cat(outputs, 0);
}

double worst(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).abs().max().item<double>() / want.abs().max().item<double>();
}

// Lengths on both sides of a block of 128 query rows, and of 16 keys; alone and as branches.
const Trees kTrees = {{0, 1, {}},        {1, 16, {}},   {17, 16, {}},  {33, 127, {}},  {160, 128, {}},
                      {288, 129, {}},    {417, 261, {}}, {678, 40, {1, 130, 17}}, {866, 129, {5, 128}}, {1128, 1, {3, 2, 1}}};
constexpr int64_t kTokens = 1135;

struct Case {
  AttentionShape shape;
  Trees trees;
  at::Tensor qkv, d_o, want, d_want;  // the last two by the formula
};

void check_by(const Backend& backend, const Case& c) {
  const c10::ScalarType dtype = c.qkv.scalar_type();
  SCOPED_TRACE(testing::Message() << backend.name << ", " << c10::toString(dtype) << ", heads " << c.shape.num_heads << ":"
                                  << c.shape.num_kv_heads << ", dim " << c.shape.head_dim);
  const double bound = dtype == at::kFloat ? 1e-5 : 0.02;
  at::Tensor lse;
  const AttentionRows rows = columns_of(c.qkv, c.shape);
  const AttentionKernels& kernels = backend.attention;
  const auto plan = plan_of(plain(backend, dtype), c.trees, c.qkv.size(0));
  const at::Tensor o = kernels.packed(rows, *plan, c.shape, &lse);
  EXPECT_LE(worst(o, c.want), bound);
  EXPECT_LE(worst(kernels.packed_by_row(rows, *plan, c.shape), c.want), bound) << "by row";
  for (const at::Tensor& l : {lse, at::Tensor()}) {
    const at::Tensor d_qkv = at::empty_like(c.qkv);
    kernels.packed_backward(rows, {o, l, c.d_o}, *plan, c.shape, columns_of(d_qkv, c.shape));
    EXPECT_LE(worst(d_qkv, c.d_want), bound) << (l.defined() ? "" : "log-sum-exp recomputed");
  }
  // As a step of the graph, in parity mode too.
  for (bool parity : {false, true}) {
    const at::Tensor leaf = c.qkv.clone().requires_grad_(true);
    const Kernels run = plain(backend, dtype, parity);
    attention(run, leaf, plan, c.shape).backward(c.d_o);
    EXPECT_LE(worst(leaf.grad(), c.d_want), bound) << (parity ? "parity" : "");
  }
}

void check(const AttentionShape& shape, c10::ScalarType dtype, const Trees& trees = kTrees, int64_t tokens = kTokens) {
  const at::Tensor qkv = random_tensor({tokens, shape.width()}, 1, dtype), d_o = random_tensor({tokens, shape.q_width()}, 2, dtype);
  const at::Tensor reference = qkv.to(at::kDouble).requires_grad_(true), want = naive(reference, trees, shape);
  want.backward(d_o.to(at::kDouble));
  for (const Backend* backend : backends()) check_by(*backend, {shape, trees, qkv, d_o, want.detach(), reference.grad()});
}

// Without a graph, all trees that lie in qkv.
at::Tensor attend(const Kernels& kernels, const at::Tensor& qkv, const Trees& trees, const AttentionShape& shape) {
  return attention(kernels, qkv, plan_of(kernels, trees, qkv.size(0)), shape);
}

// Positions of one sequence whose blocks are `table`, behind those that are there.
void add_positions(PagedTokens& to, const std::vector<int32_t>& table, int64_t begin, int64_t n) {
  at::Tensor row = at::tensor(table, at::kInt).unsqueeze(0);
  if (!to.positions_T.defined()) to = {at::empty({0, 8}, at::kInt), at::empty({0}, at::kLong), at::empty({0}, at::kLong), {}};
  to.sequence_T = at::cat({to.sequence_T, at::full({n}, to.block_tables_SB.size(0), at::kLong)});
  to.positions_T = at::cat({to.positions_T, at::arange(begin, begin + n, at::kLong)});
  to.block_tables_SB = at::cat({to.block_tables_SB, at::constant_pad_nd(row, {0, 8 - row.size(1)})});
}

at::Tensor paged(const Backend& backend, const at::Tensor& qkv, const PagedTokens& tokens, const AttentionShape& shape,
                 const PagedCache& cache) {
  return backend.attention.paged(qkv, *backend.attention.plan_paged(tokens, at::kCPU), shape, cache);
}

TEST(Attention, ForwardAndBackwardAgreeWithTheFormulaInFloat32) {
  for (int64_t D : {14, 32, 64})
    for (int64_t group : {1, 2, 3, 7}) check({2 * group, 2, D}, at::kFloat);
}

TEST(Attention, ForwardAndBackwardAgreeWithTheFormulaInBfloat16) {
  for (int64_t D : {14, 32, 64})
    for (int64_t group : {1, 2, 3, 7}) check({2 * group, 2, D}, at::kBFloat16);
}

TEST(Attention, LongSequencesAndOddHeadsAgreeWithTheFormulaInBfloat16) {
  check({2, 1, 16}, at::kBFloat16, {{0, 1300, {}}, {1300, 700, {400}}}, 2400);
  check({4, 2, 7}, at::kBFloat16);
}

TEST(Attention, ASequenceDoesNotSeeItsNeighboursNorItsFuture) {
  const AttentionShape shape{4, 2, 16};
  const Trees trees = stems(std::vector<int64_t>{40, 50});
  const at::Tensor qkv = random_tensor({90, shape.width()}, 3);
  at::Tensor changed = qkv.clone();
  changed.narrow(0, 60, 30).fill_(3.0f);
  for (const Backend* backend : backends()) {
    const Kernels kernels = plain(*backend, at::kFloat);
    const at::Tensor a = attend(kernels, qkv, trees, shape), b = attend(kernels, changed, trees, shape);
    EXPECT_LT((a.narrow(0, 0, 60) - b.narrow(0, 0, 60)).abs().max().item<float>(), 1e-6f);
    EXPECT_GT((a.narrow(0, 60, 30) - b.narrow(0, 60, 30)).abs().max().item<float>(), 0.1f);
  }
}

TEST(Attention, BlocksOfTheCacheMayLieAnywhereAndBeOfAnySize) {
  for (const Backend* backend : backends())
    for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t wanted : {16, 64}) {
        const int64_t block_tokens = std::lcm(wanted, backend->attention.block_multiple);
        const AttentionShape shape{6, 2, 20};
        const int64_t T = 75, blocks = (T + block_tokens - 1) / block_tokens;
        const at::Tensor qkv = random_tensor({T, shape.width()}, 4, dtype);
        std::vector<int32_t> table;
        for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(2 * (blocks - 1 - b)));
        const std::vector<int64_t> cache_shape = backend->attention.cache_shape(2 * blocks, block_tokens, shape);
        const PagedCache cache{at::full(cache_shape, 9.0, qkv.options()), at::full(cache_shape, NAN, qkv.options()), block_tokens};
        std::vector<at::Tensor> parts;
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 30}, {30, 31}, {31, 75}}) {
          PagedTokens tokens;
          add_positions(tokens, table, begin, end - begin);
          parts.push_back(paged(*backend, qkv.narrow(0, begin, end - begin), tokens, shape, cache));
        }
        EXPECT_TRUE(at::equal(at::cat(parts, 0), attend(plain(*backend, dtype, true), qkv, {{0, T, {}}}, shape)));  // bit for bit
      }
}

TEST(Attention, ABranchHasTheBitsItWouldHaveAloneInParityMode) {
  const AttentionShape shape{4, 2, 20};
  for (const Backend* backend : backends())
    for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Kernels kernels = plain(*backend, dtype, true);
      const at::Tensor qkv = random_tensor({23 + 9 + 30, shape.width()}, 5, dtype), stem = qkv.narrow(0, 0, 23);
      const at::Tensor together = attend(kernels, qkv, {{0, 23, {9, 30}}}, shape);
      const at::Tensor first = attend(kernels, at::cat({stem, qkv.narrow(0, 23, 9)}, 0), {{0, 32, {}}}, shape);
      const at::Tensor second = attend(kernels, at::cat({stem, qkv.narrow(0, 32, 30)}, 0), {{0, 53, {}}}, shape);
      EXPECT_TRUE(at::equal(together.narrow(0, 0, 32), first));
      EXPECT_TRUE(at::equal(together.narrow(0, 32, 30), second.narrow(0, 23, 30)));
    }
}

TEST(Attention, AWholePromptBesideDecodeAttendsAsPackedAndFillsTheCache) {
  const AttentionShape shape{6, 2, 20};
  for (const Backend* backend : backends())
    for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      // Token 0 decodes at position 3 of one sequence; 1..24 are the whole of another; 25 goes on with that one later.
      const at::Tensor qkv = random_tensor({26, shape.width()}, 6, dtype), before = random_tensor({3, shape.width()}, 7, dtype);
      const int64_t block_tokens = std::lcm<int64_t>(16, backend->attention.block_multiple);
      const std::vector<int64_t> cache_shape = backend->attention.cache_shape(4, block_tokens, shape);
      const PagedCache cache{at::zeros(cache_shape, qkv.options()), at::zeros(cache_shape, qkv.options()), block_tokens};
      const std::vector<int32_t> one = {2}, two = {3, 1};
      PagedTokens first, mixed, last;
      add_positions(first, one, 0, 3);
      paged(*backend, before, first, shape, cache);
      add_positions(mixed, one, 3, 1);
      add_positions(mixed, two, 0, 24);
      mixed.whole = {{1, 24, {}}};
      const at::Tensor o = paged(*backend, qkv.narrow(0, 0, 25), mixed, shape, cache);
      add_positions(last, two, 24, 1);
      const at::Tensor next = paged(*backend, qkv.narrow(0, 25, 1), last, shape, cache);
      const double bound = dtype == at::kFloat ? 1e-5 : 0.02;
      const auto exact = [&](const at::Tensor& rows) { return naive_sequence(rows.to(at::kDouble), shape); };
      EXPECT_LE(worst(o.narrow(0, 0, 1), exact(at::cat({before, qkv.narrow(0, 0, 1)}, 0)).narrow(0, 3, 1)), bound);
      EXPECT_LE(worst(at::cat({o.narrow(0, 1, 24), next}, 0), exact(qkv.narrow(0, 1, 25))), bound);
    }
}

}  // namespace
}  // namespace tandem::model::op
