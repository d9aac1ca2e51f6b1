// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/kernels.h"

#include <gtest/gtest.h>

#include <cstring>

#include "random_tensor.h"
#include "tandem/device/process.h"
#include "tandem/model/kernel/aten/aten.h"
#include "tandem/model/kernel/cpu/product/brgemm.h"
#include "tandem/model/kernel/cpu/product/gemm.h"
#include "tandem/model/kernel/cpu/product/packed.h"

namespace tandem::model::kernel::cpu {
namespace {

using test::random_tensor;
using test::worst_of_bound;

struct Shape {
  int64_t M, N, K;
};
constexpr Shape kShapes[] = {{1, 64, 128}, {3, 5, 7}, {33, 256, 128}, {70, 130, 96}, {257, 40, 352}, {1027, 300, 34}};

std::vector<GemmChoice> all_choices(c10::ScalarType dtype) {
  std::vector<GemmChoice> all;
  constexpr Library kAll[] = {Library::kBlas, Library::kOneDnn, Library::kBrgemm};
  for (Library forward : kAll)
    for (Library input_grad : kAll)
      for (Library weight : kAll)
        for (Logits logits : {Logits::kCopies, Logits::kBlas, Logits::kBrgemm})
          if (const GemmChoice choice{forward, input_grad, weight, logits}; can_compute(choice, dtype)) all.push_back(choice);
  return all;
}

// What rounding may do to a sum of products: a share of the sum of their sizes, and of the result where it is rounded to bf16.
at::Tensor bound(const at::Tensor& a, const at::Tensor& b, const at::Tensor& want, bool rounded) {
  return at::matmul(a.abs(), b.abs()) * 2e-6 + want.abs() * (rounded ? 1.0 / 256 : 0.0) + 1e-9;
}

// The operator that aten takes on CUDA runs here, too: rows of five experts, of which one has none.
TEST(Gemm, RowsOfExpertsByOneOperatorOfLibtorch) {
  const ExpertRows rows{{0, 3, 40, 40, 41, 77}};
  constexpr int64_t kColumns = 48, kTerms = 64;
  const at::Tensor x = random_tensor({77, kTerms}, 1, at::kBFloat16), w = random_tensor({5 * kColumns, kTerms}, 2, at::kBFloat16);
  const at::Tensor dy = random_tensor({77, kColumns}, 3, at::kBFloat16);
  const at::Tensor y = aten::grouped_by_library(x, w, rows, true), dx = aten::grouped_by_library(dy, w, rows, false);
  for (size_t e = 0; e < 5; ++e) {
    const int64_t first = rows.offsets[e], count = rows.offsets[e + 1] - first;
    const at::Tensor expert = w.narrow(0, static_cast<int64_t>(e) * kColumns, kColumns).to(at::kDouble);
    const auto close = [&](const at::Tensor& got, const at::Tensor& want) {
      return at::allclose(got.narrow(0, first, count).to(at::kDouble), want, 1.0 / 128, 1e-2);
    };
    EXPECT_TRUE(close(y, at::matmul(x.narrow(0, first, count).to(at::kDouble), expert.t()))) << e;
    EXPECT_TRUE(close(dx, at::matmul(dy.narrow(0, first, count).to(at::kDouble), expert))) << e;
  }
}

void check_products(const Kernels& kernels) {
  const c10::ScalarType dtype = kernels.dtype();
  const bool half = dtype == at::kBFloat16;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << kernels.description() << ": M " << s.M << " N " << s.N << " K " << s.K);
    const at::Tensor x = random_tensor({s.M, s.K}, 1, dtype), w = random_tensor({s.N, s.K}, 2, dtype), dy = random_tensor({s.M, s.N}, 3, dtype);
    const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble), dyd = dy.to(at::kDouble);
    at::Tensor y = at::empty({s.M, s.N}, x.options()), logits = at::empty({s.M, s.N}, at::kFloat), dx = at::empty({s.M, s.K}, x.options());
    const at::Tensor want_y = at::matmul(xd, wd.t()), want_dx = at::matmul(dyd, wd), want_dw = at::matmul(dyd.t(), xd);
    kernels.forward(y, x, w);
    EXPECT_LE(worst_of_bound(y, want_y, bound(xd, wd.t(), want_y, half)), 1.0);
    kernels.forward_float(logits, x, w);
    EXPECT_LE(worst_of_bound(logits, want_y, bound(xd, wd.t(), want_y, false)), 1.0) << "logits are never rounded to bfloat16";
    kernels.input_grad(dx, dy, w);
    EXPECT_LE(worst_of_bound(dx, want_dx, bound(dyd, wd, want_dx, half)), 1.0);
    at::Tensor dw = at::ones({s.N, s.K}, at::kFloat);  // the product adds to what is there
    kernels.weight_grad(dw, dy, x);
    EXPECT_LE(worst_of_bound(dw - 1, want_dw, bound(dyd.t(), xd, want_dw, false) + 1e-5), 1.0) << "nor are weight gradients";
  }
}

void check_choice(c10::ScalarType dtype, const GemmChoice& choice) { check_products(Kernels(backend(), dtype, choice)); }

TEST(Gemm, EveryLibraryGivesTheProductInFloat32) {
  for (const GemmChoice& choice : all_choices(at::kFloat)) check_choice(at::kFloat, choice);
}

TEST(Gemm, EveryLibraryGivesTheProductInBfloat16) {
  for (const GemmChoice& choice : all_choices(at::kBFloat16)) check_choice(at::kBFloat16, choice);
}

TEST(Gemm, SoDoesParityMode) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) check_products(Kernels(backend(), dtype, true));
}

TEST(Gemm, TheChoiceMeasuredAtStartGivesTheProductToo) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const GemmChoice choice = Kernels(backend(), dtype, false).choice();
    EXPECT_TRUE(can_compute(choice, dtype)) << to_text(choice);
    check_choice(dtype, choice);
  }
}

TEST(Gemm, AChoiceIsReadAsItIsWritten) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const GemmChoice& choice : all_choices(dtype)) {
      const auto read = parse_choice(to_text(choice));
      ASSERT_TRUE(read.has_value()) << to_text(choice);
      EXPECT_EQ(to_text(*read), to_text(choice));
    }
  const bool onednn = can_compute({Library::kOneDnn, Library::kOneDnn, Library::kOneDnn}, at::kFloat);
  EXPECT_EQ(all_choices(at::kFloat).size(), onednn ? 8U : 1U);
  const size_t ways = 1U + (half_product_available() ? 1U : 0U) + (brgemm_available() ? 1U : 0U);
  EXPECT_EQ(all_choices(at::kBFloat16).size(), ways * ways) << "of weight gradients, and of logits";
  for (const char* text : {"", "blas", "blas blas blas", "blas blas blas float ", "mkl blas blas float", "blas,blas,blas,float"})
    EXPECT_FALSE(parse_choice(text).has_value()) << text;
}

// Blocks are cut by the shapes, so threads share them without a change.
TEST(Gemm, BlockProductsHaveTheSameBitsOnAnyNumberOfThreads) {
  if (!brgemm_available()) GTEST_SKIP() << "this processor has no instructions for bfloat16 blocks";
  for (const int64_t N : {530, 24}) {  // more blocks than threads, and fewer
    const at::Tensor x = random_tensor({701, 290}, 1, at::kBFloat16), w = random_tensor({N, 290}, 2, at::kBFloat16);
    const at::Tensor dy = random_tensor({701, N}, 3, at::kBFloat16);
    std::vector<at::Tensor> logits, grads;
    for (const int threads : {1, 2, 5}) {
      const device::ThreadLimit limit(threads);
      logits.push_back(at::empty({701, N}, at::kFloat)), grads.push_back(at::ones({N, 290}, at::kFloat));
      brgemm_forward(logits.back(), x, w);
      brgemm_weight_grad(grads.back(), dy, x);
    }
    const PackedWeight packed = pack_head({.choice = {.logits = Logits::kBrgemm}}, w);
    ASSERT_TRUE(packed.defined());
    EXPECT_TRUE(packed_product(x, packed).equal(logits[0])) << "packed once or in every product";
    EXPECT_FALSE(pack_head({}, w).defined());
    for (size_t i = 1; i < logits.size(); ++i) EXPECT_TRUE(logits[i].equal(logits[0]) && grads[i].equal(grads[0])) << i;
    const at::Tensor want = dy.to(at::kDouble).t().mm(x.to(at::kDouble)) + 1;
    EXPECT_LT((grads[0].to(at::kDouble) - want).abs().max().item<double>(), 1e-3);
  }
}

TEST(Gemm, InnerProductsTransposeScaleAndAdd) {
  for (bool ta : {false, true})
    for (bool tb : {false, true}) {
      const int64_t m = 37, n = 21, k = 50;
      const at::Tensor a = random_tensor({ta ? k : m, (ta ? m : k) + 3}, 4), b = random_tensor({tb ? n : k, (tb ? k : n) + 5}, 5);
      at::Tensor c = random_tensor({m, n + 2}, 6);
      const at::Tensor ad = a.narrow(1, 0, ta ? m : k).to(at::kDouble), bd = b.narrow(1, 0, tb ? k : n).to(at::kDouble);
      const at::Tensor want = at::matmul(ta ? ad.t() : ad, tb ? bd.t() : bd) * 0.5 + c.narrow(1, 0, n).to(at::kDouble) * 2.0;
      const at::Tensor margin = c.narrow(1, n, 2).clone();
      product({ta, tb, m, n, k, a.size(1), b.size(1), c.size(1), 0.5f, 2.0f}, a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>());
      EXPECT_LT((c.narrow(1, 0, n).to(at::kDouble) - want).abs().max().item<double>(), 1e-4);
      EXPECT_TRUE(at::equal(margin, c.narrow(1, n, 2)));
    }
}

// Bits of row i of a product of M rows, for all i, against the row alone.
void check_parity(c10::ScalarType dtype, const Shape& s) {
  const Kernels kernels(backend(), dtype, true);
  const at::Tensor x = random_tensor({s.M, s.K}, 1, dtype), w = random_tensor({s.N, s.K}, 2, dtype);
  at::Tensor all = at::empty({s.M, s.N}, x.options()), logits = at::empty({s.M, s.N}, at::kFloat);
  kernels.forward(all, x, w);
  kernels.forward_float(logits, x, w);
  for (int64_t i = 0; i < s.M; ++i) {
    at::Tensor one = at::empty({1, s.N}, x.options()), one_float = at::empty({1, s.N}, at::kFloat);
    kernels.forward(one, x.narrow(0, i, 1), w);
    kernels.forward_float(one_float, x.narrow(0, i, 1), w);
    const auto bytes = static_cast<size_t>(s.N) * all.element_size();
    ASSERT_EQ(std::memcmp(one.data_ptr(), static_cast<const char*>(all.data_ptr()) + static_cast<size_t>(i) * bytes, bytes), 0) << "row " << i;
    ASSERT_EQ(std::memcmp(one_float.data_ptr(), logits.data_ptr<float>() + i * s.N, static_cast<size_t>(s.N) * 4), 0) << "row " << i;
  }
}

TEST(Gemm, InParityModeARowIsTheSameBitsWhateverItsPlaceAndCompany) {
  for (int threads : {1, 2}) {
    device::set_compute_threads(threads);
    for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Shape& s : {Shape{70, 256, 128}, {95, 32, 128}, {70, 704, 128}, {70, 128, 352}, {40, 1152, 896}, {40, 896, 4864}, {33, 50, 14}}) {
        SCOPED_TRACE(testing::Message() << c10::toString(dtype) << ", " << threads << " threads, N " << s.N << " K " << s.K);
        check_parity(dtype, s);
      }
  }
}

}  // namespace
}  // namespace tandem::model::kernel::cpu
