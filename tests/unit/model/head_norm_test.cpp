// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "backends.h"
#include "random_tensor.h"
#include "tandem/model/op/function.h"

namespace tandem::model::op {
namespace {

using test::random_tensor;

double worst_norm(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).abs().max().item<double>() / want.abs().max().item<double>();
}

TEST(HeadNorm, AgreesWithTheFormulaAndLeavesValuesAlone) {
  const AttentionShape shape{6, 2, 20};
  const int64_t T = 150, D = shape.head_dim, heads = shape.num_heads + shape.num_kv_heads;  // rows beyond one slice of partial sums
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double bound = dtype == at::kFloat ? 1e-5 : 0.02;
    const at::Tensor qkv = random_tensor({T, shape.width()}, 1, dtype), norms = random_tensor({2 * D}, 2, dtype);
    const at::Tensor d = random_tensor({T, shape.width()}, 3, dtype);
    const at::Tensor x = qkv.to(at::kDouble).requires_grad_(true), w = norms.to(at::kDouble).requires_grad_(true);
    const at::Tensor split = x.reshape({T, heads + shape.num_kv_heads, D});
    const auto normed = [&](int64_t begin, int64_t count, int64_t which) {
      const at::Tensor part = split.narrow(1, begin, count);
      return part * (part.square().mean(-1, true) + 1e-6).rsqrt() * w.narrow(0, which * D, D);
    };
    const at::Tensor want = at::cat({normed(0, shape.num_heads, 0), normed(shape.num_heads, shape.num_kv_heads, 1),
                                     split.narrow(1, heads, shape.num_kv_heads)}, 1).reshape({T, shape.width()});
    want.backward(d.to(at::kDouble));

    for (const kernel::Backend* backend : test::backends()) {
      SCOPED_TRACE(backend->name);
      const Kernels kernels = test::plain(*backend, dtype);
      const at::Tensor leaf = qkv.clone().requires_grad_(true);
      Parameter p;
      p.value = norms;
      p.grad = at::ones({2 * D}, at::kFloat);
      const at::Tensor out = head_norm(kernels, leaf, p, 1e-6, shape);
      EXPECT_LE(worst_norm(out.detach(), want.detach()), bound);
      EXPECT_TRUE(at::equal(out.detach().narrow(1, heads * D, shape.num_kv_heads * D), qkv.narrow(1, heads * D, shape.num_kv_heads * D)));
      out.backward(d);
      EXPECT_LE(worst_norm(leaf.grad(), x.grad()), bound);
      EXPECT_LE(worst_norm(p.grad - 1, w.grad()), bound);
    }
  }
}

}  // namespace
}  // namespace tandem::model::op
