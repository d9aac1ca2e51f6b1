// SPDX-License-Identifier: Apache-2.0
// R rows, H hidden size, L labels. Values against transformers: `tandem-oracle model tests/fixtures/*_score*`.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "random_tensor.h"
#include "tandem/model/op/function.h"

namespace tandem::model::op {

using namespace kernel;

namespace {

using test::random_tensor;

constexpr int64_t kR = 37, kH = 50, kL = 3;

Parameter score_head(c10::ScalarType dtype) {
  Parameter head;
  head.value = random_tensor({kL, kH}, 2).to(dtype);
  head.grad = at::zeros({kL, kH}, at::kFloat);
  return head;
}

TEST(Scores, AreFloatSumsInEitherDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Library library = dtype == at::kFloat ? Library::kBlas : Library::kOneDnn;
    const Kernels kernels(kernel::cpu::backend(), dtype, GemmChoice{library, library, library});
    const Parameter head = score_head(dtype);
    const at::Tensor x = random_tensor({kR, kH}, 1).to(dtype), got = head_scores(kernels, x, head);
    const at::Tensor want = at::mm(x.to(at::kDouble), head.value.to(at::kDouble).t());
    ASSERT_EQ(got.scalar_type(), at::kFloat);
    EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), 1e-5) << "bfloat16 operands, fp32 sums";
    for (const int64_t row : {0, 20, 36})
      EXPECT_TRUE(at::equal(head_scores(kernels, x.narrow(0, row, 1), head), got.narrow(0, row, 1))) << "a row alone";
  }
}

TEST(Scores, GradientsAddUpInTheBufferOfTheHead) {
  for (const Library library : {Library::kBlas, Library::kOneDnn}) {
    const GemmChoice choice{library, library, library};
    if (!kernel::cpu::backend().product.can_compute(choice, at::kFloat)) continue;
    const Kernels kernels(kernel::cpu::backend(), at::kFloat, choice);
    for (const int64_t labels : {int64_t{1}, kL}) {
      Parameter head = score_head(at::kFloat);
      head.value = head.value.narrow(0, 0, labels), head.grad = head.grad.narrow(0, 0, labels).fill_(1);
      const at::Tensor x = random_tensor({kR, kH}, 1).requires_grad_(true), d = random_tensor({kR, labels}, 3);
      head_scores(kernels, x, head).backward(d);
      EXPECT_LE((x.grad() - at::mm(d, head.value)).abs().max().item<double>(), 1e-5);
      EXPECT_LE((head.grad - 1 - at::mm(d.t(), x.detach())).abs().max().item<double>(), 1e-4) << "added to what was there";
    }
  }
}

}  // namespace
}  // namespace tandem::model::op
