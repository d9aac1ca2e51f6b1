// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/score_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "tandem/model/kernel/cpu/product/brgemm.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr Half kNan = 0x7fc0;
constexpr size_t kBeyond = 256;  // elements after a result, which nobody may touch
constexpr float kUntouched = -0.0f;  // adding a zero would show, too

Half half_of(float value) { return static_cast<Half>(std::bit_cast<uint32_t>(value) >> 16); }
double number(Half bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// rows x columns numbers, `stride` apart; what lies between rows and after them is not a number.
struct Matrix {
  int64_t rows, columns, stride;
  std::vector<Half> data;

  Matrix(int64_t rows, int64_t columns, int64_t stride, uint32_t seed)
      : rows(rows), columns(columns), stride(stride), data(static_cast<size_t>(rows * stride) + kBeyond, kNan) {
    std::mt19937 random(seed);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) at(r, c) = half_of(std::uniform_real_distribution<float>(-1, 1)(random));
  }
  Half& at(int64_t r, int64_t c) { return data[static_cast<size_t>(r * stride + c)]; }
  double value(int64_t r, int64_t c) const { return number(data[static_cast<size_t>(r * stride + c)]); }
  void clear(int64_t first_row, int64_t first_column, int64_t last_row, int64_t last_column) {
    for (int64_t r = first_row; r < last_row; ++r)
      for (int64_t c = first_column; c < last_column; ++c) at(r, c) = 0;
  }
};

struct Result {
  int64_t rows, columns, stride;
  std::vector<float> data;
  Result(int64_t rows, int64_t columns, int64_t stride, float first)
      : rows(rows), columns(columns), stride(stride), data(static_cast<size_t>((rows - 1) * stride + columns), first) {
    data.resize(data.size() + kBeyond, kUntouched);
  }
  void check(const std::function<double(int64_t, int64_t)>& want) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const double wanted = want(r, c);
        ASSERT_NEAR(data[static_cast<size_t>(r * stride + c)], wanted, 1e-5 * (1 + std::abs(wanted))) << "row " << r << ", column " << c;
      }
    for (size_t i = data.size() - kBeyond; i < data.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(data[i]), std::bit_cast<uint32_t>(kUntouched)) << "beyond the result";
  }
};

void check(int64_t R, int64_t keys, int64_t D) {
  SCOPED_TRACE(testing::Message() << R << " rows, " << keys << " keys, " << D << " wide");
  const ScoreBlocks blocks(R, keys, D);
  const int64_t rows = blocks.rows, filled = blocks.filled_keys();
  ASSERT_TRUE(rows >= R && filled >= keys && blocks.stride >= filled);
  Matrix q(rows, D, D, 1), k(keys, D, 3 * D, 2), p(rows, filled, blocks.stride, 3);
  q.clear(R, 0, rows, D);
  p.clear(R, 0, rows, filled);
  p.clear(0, keys, rows, filled);

  Result scores(rows, filled, blocks.stride, NAN);
  blocks.multiply_by_keys(q.data.data(), k.data.data(), k.stride, scores.data.data());
  scores.check([&](int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t i = 0; i < D && r < R && c < keys; ++i) sum += q.value(r, i) * k.value(c, i);
    return sum;
  });
  Result mixed(rows, D, D, NAN);
  blocks.mix(p.data.data(), k.data.data(), k.stride, mixed.data.data());
  mixed.check([&](int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t i = 0; i < keys; ++i) sum += p.value(r, i) * k.value(i, c);
    return sum;
  });
  Result added(filled, D, D, 0.5f);
  blocks.add_transposed_mix(p.data.data(), q.data.data(), added.data.data());
  added.check([&](int64_t r, int64_t c) {
    double sum = 0.5;
    for (int64_t i = 0; i < R; ++i) sum += p.value(i, r) * q.value(i, c);
    return sum;
  });
}

TEST(ScoreBlocks, ProductsReadAndWriteWhatIsThereAndNoMore) {
  if (!brgemm_available()) GTEST_SKIP() << "this processor has no block kernels";
  for (int64_t D : {2, 14, 64, 128})
    for (const auto& [R, keys] : {std::pair<int64_t, int64_t>{1, 1}, {31, 63}, {64, 64}, {100, 65}, {33, 320}, {545, 257}})
      check(R, keys, D);
  check(40, 1500, 16);
}

TEST(ScoreBlocks, FewStridesServeAllLengths) {
  int64_t strides = 0, last = 0;
  for (int64_t keys = 1; keys <= 1 << 17; ++keys) {
    const ScoreBlocks blocks(1, keys, 64);
    ASSERT_GE(blocks.stride, blocks.filled_keys());
    ASSERT_LE(blocks.stride, keys + std::max<int64_t>(96, keys / 4 + 32));
    strides += blocks.stride != last;
    last = blocks.stride;
  }
  EXPECT_LE(strides, 40);
}

}  // namespace
}  // namespace tandem::model::kernel::cpu
