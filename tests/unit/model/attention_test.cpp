// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "random_tensor.h"
#include "tandem/model/kernel/function.h"

namespace tandem::model::kernel {
namespace {

using test::random_tensor;

// Causal attention of each sequence in double, as the formula says it; differentiable.
at::Tensor naive(const at::Tensor& qkv, const Offsets& offsets, const AttentionShape& shape) {
  const int64_t D = shape.head_dim, Q = shape.q_width(), kv = shape.num_kv_heads * D;
  std::vector<at::Tensor> sequences;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t n = offsets[s + 1] - offsets[s];
    const at::Tensor rows = qkv.narrow(0, offsets[s], n);
    const auto heads = [&](int64_t begin, int64_t width, int64_t count) { return rows.narrow(1, begin, width).reshape({n, count, D}).transpose(0, 1); };
    const at::Tensor q = heads(0, Q, shape.num_heads), k = heads(Q, kv, shape.num_kv_heads).repeat_interleave(shape.group(), 0),
                     v = heads(Q + kv, kv, shape.num_kv_heads).repeat_interleave(shape.group(), 0);
    const at::Tensor future = at::ones({n, n}, at::kBool).triu(1);
    const at::Tensor p = (at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(D))).masked_fill(future, -INFINITY).softmax(-1);
    sequences.push_back(at::matmul(p, v).transpose(0, 1).reshape({n, Q}));
  }
  return at::cat(sequences, 0);
}

double worst(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).abs().max().item<double>() / want.abs().max().item<double>();
}

// Lengths on both sides of a block of 128 query rows, and of 16 keys.
const Offsets kOffsets = {0, 1, 17, 33, 33 + 127, 160 + 128, 288 + 129, 417 + 261};

void check(const AttentionShape& shape, c10::ScalarType dtype) {
  SCOPED_TRACE(testing::Message() << c10::toString(dtype) << ", heads " << shape.num_heads << ":" << shape.num_kv_heads << ", dim " << shape.head_dim);
  const double bound = dtype == at::kFloat ? 1e-5 : 0.02;
  const at::Tensor qkv = random_tensor({kOffsets.back(), shape.width()}, 1, dtype), d_o = random_tensor({kOffsets.back(), shape.q_width()}, 2, dtype);
  const at::Tensor reference = qkv.to(at::kDouble).requires_grad_(true);
  const at::Tensor want = naive(reference, kOffsets, shape);
  want.backward(d_o.to(at::kDouble));

  at::Tensor lse;
  const at::Tensor o = packed_attention(qkv, kOffsets, shape, &lse);
  EXPECT_LE(worst(o, want.detach()), bound);
  EXPECT_LE(worst(packed_attention_by_row(qkv, kOffsets, shape), want.detach()), bound) << "by row";
  for (const at::Tensor& l : {lse, at::Tensor()}) {
    const at::Tensor d_qkv = packed_attention_backward(d_o, o, qkv, l, kOffsets, shape);
    EXPECT_LE(worst(d_qkv, reference.grad()), bound) << (l.defined() ? "" : "log-sum-exp recomputed");
  }
  // As a step of the graph, in parity mode too.
  for (bool parity : {false, true}) {
    const at::Tensor leaf = qkv.clone().requires_grad_(true);
    attention(leaf, kOffsets, shape, parity).backward(d_o);
    EXPECT_LE(worst(leaf.grad(), reference.grad()), bound) << (parity ? "parity" : "");
  }
}

TEST(Attention, ForwardAndBackwardAgreeWithTheFormulaInFloat32) {
  for (int64_t D : {14, 32, 64})
    for (int64_t group : {1, 2, 3, 7}) check({2 * group, 2, D}, at::kFloat);
}

TEST(Attention, ForwardAndBackwardAgreeWithTheFormulaInBfloat16) {
  for (int64_t D : {14, 32, 64})
    for (int64_t group : {1, 2, 3, 7}) check({2 * group, 2, D}, at::kBFloat16);
}

TEST(Attention, ASequenceDoesNotSeeItsNeighboursNorItsFuture) {
  const AttentionShape shape{4, 2, 16};
  const Offsets offsets = {0, 40, 90};
  const at::Tensor qkv = random_tensor({90, shape.width()}, 3);
  at::Tensor changed = qkv.clone();
  changed.narrow(0, 60, 30).fill_(3.0f);
  const at::Tensor a = packed_attention(qkv, offsets, shape, nullptr), b = packed_attention(changed, offsets, shape, nullptr);
  EXPECT_LT((a.narrow(0, 0, 60) - b.narrow(0, 0, 60)).abs().max().item<float>(), 1e-6f);
  EXPECT_GT((a.narrow(0, 60, 30) - b.narrow(0, 60, 30)).abs().max().item<float>(), 0.1f);
}

TEST(Attention, BlocksOfTheCacheMayLieAnywhereAndBeOfAnySize) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (int64_t block_tokens : {16, 64}) {
      const AttentionShape shape{6, 2, 20};
      const int64_t T = 75, blocks = (T + block_tokens - 1) / block_tokens;
      const at::Tensor qkv = random_tensor({T, shape.width()}, 4, dtype);
      std::vector<int32_t> table;
      for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(2 * (blocks - 1 - b)));
      const std::vector<int64_t> cache_shape = {2 * blocks, 2, block_tokens, 20};
      at::Tensor keys = at::full(cache_shape, 9.0, qkv.options()), values = at::full(cache_shape, NAN, qkv.options());
      const PagedCache cache{keys.data_ptr(), values.data_ptr(), 2, 20, block_tokens, shape.group()};
      std::vector<at::Tensor> parts;
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 30}, {30, 31}, {31, 75}}) {
        PagedTokens tokens;
        for (int64_t t = begin; t < end; ++t) tokens.block_tables.push_back(table.data()), tokens.positions.push_back(t);
        parts.push_back(paged_attention(qkv.narrow(0, begin, end - begin), tokens, shape, cache));
      }
      EXPECT_TRUE(at::equal(at::cat(parts, 0), packed_attention_by_row(qkv, {0, T}, shape)));  // bit for bit
    }
}

}  // namespace
}  // namespace tandem::model::kernel
