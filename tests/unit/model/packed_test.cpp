// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/packed.h"

#include <gtest/gtest.h>

#include <cstring>

#include "random_tensor.h"
#include "tandem/model/kernel/cpu/rows.h"

namespace tandem::model::kernel::cpu {
namespace {

using test::random_tensor;
using test::worst_of_bound;

at::Tensor double_product(const at::Tensor& x, const at::Tensor& w) { return at::matmul(x.to(at::kDouble), w.to(at::kDouble).t()); }

at::Tensor packed_bound(const at::Tensor& x, const at::Tensor& w, const at::Tensor& want) {
  const double rounded = x.scalar_type() == at::kBFloat16 ? 1.0 / 256 : 0.0;
  return double_product(x.abs(), w.abs()) * 2e-6 + want.abs() * rounded + 1e-9;
}

void check_product(int64_t M, int64_t N, int64_t K, c10::ScalarType dtype) {
  SCOPED_TRACE(testing::Message() << M << " x " << N << " x " << K << " " << dtype);
  const at::Tensor x = random_tensor({M, K}, 1, dtype), w = random_tensor({N, K}, 2, dtype);
  const PackedWeight packed = pack_weight({}, w);
  if (!packed.defined()) GTEST_SKIP() << "this libtorch cannot pack " << dtype;
  const at::Tensor want = double_product(x, w), got = packed_product(x, packed);
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LE(worst_of_bound(got, want, packed_bound(x, w, want)), 1.0);
}

TEST(Packed, ProductsOfAnyShapeAreRight) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (int64_t M : {1, 2, 7, 8, 9, 33, 200})
      for (int64_t N : {1, 47, 48, 130})
        for (int64_t K : {1, 31, 256}) check_product(M, N, K, dtype);
}

TEST(Packed, LongSumsAndManyRowsGoInPieces) {
  check_product(20, 100, 2500, at::kFloat);
  check_product(300, 50, 1408, at::kFloat);
}

TEST(Packed, ARowHasTheSameBitsInAnyCompany) {
  const at::Tensor x = random_tensor({150, 1300}, 3), w = random_tensor({100, 1300}, 4);
  const PackedWeight packed = pack_weight({}, w);
  const at::Tensor together = packed_product(x, packed);
  for (int64_t row : {0, 7, 8, 77, 149}) {
    const at::Tensor alone = packed_product(x.narrow(0, row, 1), packed);
    EXPECT_EQ(std::memcmp(alone.data_ptr<float>(), together.select(0, row).data_ptr<float>(), 100 * sizeof(float)), 0) << row;
  }
}

// One panel by hand, in every table: `columns` of it are wanted, the other outputs stay as they are.
void check_panel(const FloatTable& table, int64_t rows, int64_t columns, bool add) {
  const int64_t K = 37, stride = table.panel_columns + 3;
  const at::Tensor x = random_tensor({rows, K}, 5), panel = random_tensor({K, table.panel_columns}, 6);
  at::Tensor out = random_tensor({rows, stride}, 7);
  at::Tensor want = out.to(at::kDouble);
  at::Tensor part = want.narrow(1, 0, columns);
  const at::Tensor product = double_product(x, panel.t()).narrow(1, 0, columns);
  if (add) part.add_(product);
  else part.copy_(product);
  const float* from = panel.data_ptr<float>();
  table.panel_product({x.data_ptr<float>(), K, rows, from, K, out.data_ptr<float>(), stride, columns, add, from, 2});
  EXPECT_LE((out.to(at::kDouble) - want).abs().max().item<double>(), 1e-4) << rows << " rows, " << columns << " columns, add " << add;
}

TEST(Packed, EveryTableMultipliesAPanel) {
  for (const Rows* table : all_rows()) {
    SCOPED_TRACE(table->isa);
    for (int64_t rows = 1; rows <= table->fp.panel_rows; ++rows)
      for (int64_t columns : {int64_t{1}, table->fp.panel_columns - 1, table->fp.panel_columns})
        for (bool add : {false, true}) check_panel(table->fp, rows, columns, add);
  }
}

}  // namespace
}  // namespace tandem::model::kernel::cpu
