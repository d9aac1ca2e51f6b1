// SPDX-License-Identifier: Apache-2.0
// Each kernel of each instruction set against the formula in double, for widths around a vector's.
#include "tandem/model/kernel/cpu/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tandem/base/rng.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kWidths[] = {1, 2, 7, 15, 16, 17, 31, 64, 100, 131};

Half to_half(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<Half>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float value_of(float x) { return x; }
float value_of(Half h) {
  const uint32_t u = uint32_t{h} << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
void set(float& to, float x) { to = x; }
void set(Half& to, float x) { to = to_half(x); }

template <class T>
std::vector<T> random_row(int64_t n, uint64_t seed, double deviation = 1.0) {
  RandomStream random(seed, 5);
  std::vector<T> row(static_cast<size_t>(n));
  for (T& x : row) set(x, static_cast<float>(random.normal() * deviation));
  return row;
}

template <class T>
std::vector<double> doubles(const std::vector<T>& row) {
  std::vector<double> d;
  for (T x : row) d.push_back(value_of(x));
  return d;
}

template <class T>
constexpr double kTolerance = sizeof(T) == 2 ? 6e-3 : 3e-6;  // half a unit of the last place of bf16 is 1/512

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<double>& want, const char* what, double scale = 1) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(value_of(got[i]), want[i], kTolerance<T> * scale * std::max(1.0, std::abs(want[i]))) << what << ", element " << i << " of " << got.size();
}

// A row with a guard behind it: a kernel must not write past its width.
template <class T>
struct Guarded {
  std::vector<T> cells;
  explicit Guarded(int64_t n) : cells(static_cast<size_t>(n) + 32) {
    for (T& x : cells) set(x, 77.0f);
  }
  T* data() { return cells.data(); }
  std::vector<T> row() {
    for (size_t i = cells.size() - 32; i < cells.size(); ++i) EXPECT_EQ(value_of(cells[i]), 77.0f) << "written past the end";
    return {cells.begin(), cells.end() - 32};
  }
};

template <class T>
const RowTable<T>& table_of(const Rows& rows);
template <>
const RowTable<float>& table_of<float>(const Rows& rows) { return rows.f32; }
template <>
const RowTable<Half>& table_of<Half>(const Rows& rows) { return rows.bf16; }

template <class T>
void check_dot_tile(const RowTable<T>& k, int64_t n) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {1, 6}, {3, 4}, {5, 9}, {8, 5}}) {
    const auto x = random_row<float>(rows * n, 31);
    const auto w = random_row<T>(columns * n, 32);
    const int64_t stride = columns + 2;
    Guarded<T> out(rows * stride);
    k.dot_tile({x.data(), w.data(), n, rows, columns, out.data(), stride});
    const auto got = out.row();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < stride; ++c) {
        double dot = 0, size = 0;
        for (int64_t i = 0; i < n && c < columns; ++i) {
          const double product = static_cast<double>(x[static_cast<size_t>(r * n + i)]) * value_of(w[static_cast<size_t>(c * n + i)]);
          dot += product;
          size += std::abs(product);
        }
        const float value = value_of(got[static_cast<size_t>(r * stride + c)]);
        const double rounding = sizeof(T) == 2 ? kTolerance<T> * std::abs(dot) : 0.0;
        if (c < columns) ASSERT_NEAR(value, dot, rounding + 3e-6 * size + 1e-6) << "row " << r << ", column " << c;
        else ASSERT_EQ(value, 77.0f) << "written between the rows";
      }
    // A row has the same bits alone.
    Guarded<T> alone(columns);
    k.dot_tile({x.data() + (rows - 1) * n, w.data(), n, 1, columns, alone.data(), columns});
    for (int64_t c = 0; c < columns; ++c)
      ASSERT_EQ(value_of(alone.cells[static_cast<size_t>(c)]), value_of(got[static_cast<size_t>((rows - 1) * stride + c)]));
  }
}

template <class T>
void check_norm(const RowTable<T>& k, int64_t n) {
  const auto x = random_row<T>(n, 1), delta = random_row<T>(n, 2), w = random_row<T>(n, 3), d = random_row<T>(n, 4), residual = random_row<T>(n, 6);
  Guarded<T> total(n), normed(n), dx(n);
  float rstd = 0;
  k.add_rms_norm(x.data(), delta.data(), w.data(), 1e-6f, n, total.data(), normed.data(), &rstd);
  std::vector<double> sum, want, want_dx;
  for (size_t i = 0; i < x.size(); ++i) sum.push_back(static_cast<double>(value_of(x[i])) + value_of(delta[i]));
  expect_near(total.row(), sum, "x + delta");
  sum = doubles(total.row());  // the norm sees the rounded sum
  const double mean_square = std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0) / static_cast<double>(n), r = 1 / std::sqrt(mean_square + 1e-6);
  for (size_t i = 0; i < sum.size(); ++i) want.push_back(sum[i] * r * value_of(w[i]));
  expect_near(normed.row(), want, "norm");
  EXPECT_NEAR(rstd / r, 1.0, 1e-5);

  std::vector<float> dw(static_cast<size_t>(n), 0.5f);
  const auto stored = total.row();
  k.rms_norm_backward(d.data(), stored.data(), w.data(), rstd, residual.data(), n, dx.data(), dw.data());
  double dot = 0;
  std::vector<double> want_dw;
  for (size_t i = 0; i < sum.size(); ++i) {
    dot += value_of(d[i]) * value_of(w[i]) * sum[i] * r;
    want_dw.push_back(0.5 + value_of(d[i]) * sum[i] * r);
  }
  for (size_t i = 0; i < sum.size(); ++i)
    want_dx.push_back((value_of(d[i]) * value_of(w[i]) - sum[i] * r * dot / static_cast<double>(n)) * r + value_of(residual[i]));
  expect_near(dx.row(), want_dx, "norm backward", 1 + r * r);
  expect_near(dw, want_dw, "weight gradient of the norm", 2 + r);
}

template <class T>
void check_swiglu(const RowTable<T>& k, int64_t n) {
  auto gate_up = random_row<T>(2 * n, 7, 3.0);
  set(gate_up[0], -90.0f);  // exp overflows here if it is not cut off
  const auto d = random_row<T>(n, 8);
  Guarded<T> out(n), d_gate_up(2 * n);
  k.swiglu(gate_up.data(), n, out.data());
  k.swiglu_backward(gate_up.data(), d.data(), n, d_gate_up.data());
  std::vector<double> want, want_gate, want_up;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const double g = value_of(gate_up[i]), u = value_of(gate_up[i + static_cast<size_t>(n)]), s = 1 / (1 + std::exp(-g)), x = value_of(d[i]);
    want.push_back(g * s * u);
    want_gate.push_back(x * u * s * (1 + g * (1 - s)));
    want_up.push_back(x * g * s);
  }
  want_gate.insert(want_gate.end(), want_up.begin(), want_up.end());
  expect_near(out.row(), want, "swiglu");
  expect_near(d_gate_up.row(), want_gate, "swiglu backward", 4);
}

template <class T>
void check_rope(const RowTable<T>& k, int64_t half) {
  const int64_t D = 2 * half, heads = 3, rotated = 2;
  const auto in = random_row<T>(heads * D, 9), bias = random_row<T>(heads * D, 10);
  std::vector<float> cos_sin;
  for (int64_t i = 0; i < D; ++i) cos_sin.push_back(i < half ? std::cos(0.3f * i) : std::sin(0.3f * (i - half)));
  for (float direction : {1.0f, -1.0f}) {
    Guarded<T> out(heads * D);
    k.rope(in.data(), bias.data(), cos_sin.data(), heads, rotated, D, direction, out.data());
    std::vector<double> want(static_cast<size_t>(heads * D));
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        const auto at = [&](int64_t j) { return static_cast<double>(value_of(in[static_cast<size_t>(h * D + j)])) + value_of(bias[static_cast<size_t>(h * D + j)]); };
        const double c = h < rotated ? cos_sin[static_cast<size_t>(i)] : 1.0, s = h < rotated ? direction * cos_sin[static_cast<size_t>(half + i)] : 0.0;
        want[static_cast<size_t>(h * D + i)] = at(i) * c - at(half + i) * s;
        want[static_cast<size_t>(h * D + half + i)] = at(half + i) * c + at(i) * s;
      }
    expect_near(out.row(), want, "rope", 2);
  }
}

template <class T>
void check_softmax(const RowTable<T>& k, int64_t n) {
  const auto scores = random_row<float>(n, 11, 4.0), d_p = random_row<float>(n, 12);
  const int64_t valid = (n + 1) / 2;
  Guarded<T> p(n), p_again(n), d_s(n);
  const float lse = k.softmax_row(scores.data(), 0.7f, valid, n, p.data());
  double sum = 0;
  for (int64_t i = 0; i < valid; ++i) sum += std::exp(0.7 * scores[static_cast<size_t>(i)]);
  EXPECT_NEAR(lse, std::log(sum), 1e-5);
  std::vector<double> want(static_cast<size_t>(n), 0.0), want_d(static_cast<size_t>(n), 0.0);
  for (size_t i = 0; i < static_cast<size_t>(valid); ++i) {
    want[i] = std::exp(0.7 * scores[i]) / sum;
    want_d[i] = want[i] * (d_p[i] - 0.2) * 0.7;
  }
  expect_near(p.row(), want, "softmax");
  float lse_delta[2] = {lse, 0.2f};
  int64_t n_valid[2] = {n, valid};
  k.softmax_backward_row(scores.data(), d_p.data(), 0.7f, lse_delta, n_valid, p_again.data(), d_s.data());
  expect_near(p_again.row(), want, "softmax again");
  expect_near(d_s.row(), want_d, "softmax backward", 3);
}

template <class T>
void check_sums(const RowTable<T>& k, int64_t n) {
  const auto a = random_row<T>(n, 13), b = random_row<T>(n, 14);
  double dot = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(value_of(a[i])) * value_of(b[i]);
    size += std::abs(value_of(a[i]) * value_of(b[i]));
  }
  EXPECT_NEAR(k.dot(a.data(), b.data(), n), dot, 1e-6 * (size + 1));
  Guarded<float> up(n);
  Guarded<T> down(n);
  k.to_float(a.data(), n, up.data());
  const auto floats = up.row();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(floats[i], value_of(a[i]));
  const auto source = random_row<float>(n, 15);
  k.from_float(source.data(), n, down.data());
  const auto rounded = down.row();
  for (size_t i = 0; i < a.size(); ++i) {
    T want;
    set(want, source[i]);
    ASSERT_EQ(value_of(rounded[i]), value_of(want));
  }
  std::vector<float> sums(static_cast<size_t>(n), 2.0f);
  k.add_columns(a.data(), n, sums.data());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(sums[i], 2.0f + value_of(a[i]));
}

template <class T>
void check_logits(const Rows& rows, int64_t n) {
  const auto logits = random_row<float>(n, 16, 5.0);
  const double inv = 1 / 0.7;
  double top = -1e9, sum = 0, weighted = 0;
  for (float x : logits) top = std::max(top, x * 1.0);
  for (float x : logits) sum += std::exp((x - top) * inv), weighted += std::exp((x - top) * inv) * ((x - top) * inv);
  const LogitStats s = rows.fp.logit_stats(logits.data(), n, static_cast<float>(inv));
  EXPECT_NEAR(s.max, top, 1e-5);
  EXPECT_NEAR((1 + s.rest) / sum, 1.0, 1e-5);
  EXPECT_NEAR(s.weighted, weighted, 1e-5 * (1 + std::abs(weighted)));
  const double lse = top * inv + std::log(sum);
  const double entropy = std::log(sum) - weighted / sum;
  const LogSoftmax softmax{static_cast<float>(inv), s.max, static_cast<float>(std::log(sum)), static_cast<float>(entropy)};
  for (int64_t target : {int64_t{0}, n - 1, int64_t{-1}, n})
    for (float entropy_scale : {0.0f, -0.7f}) {
      Guarded<T> d(n);
      table_of<T>(rows).logit_grad(logits.data(), n, softmax, {0.3f, entropy_scale, target}, d.data());
      std::vector<double> want;
      for (int64_t i = 0; i < n; ++i) {
        const double log_p = logits[static_cast<size_t>(i)] * inv - lse, p = std::exp(log_p);
        want.push_back(0.3 * ((i == target) - p) - entropy_scale * p * (log_p + entropy));
      }
      expect_near(d.row(), want, "gradient of logits");
    }
  EXPECT_EQ(rows.fp.argmax(logits.data(), n), std::max_element(logits.begin(), logits.end()) - logits.begin());
  EXPECT_NEAR(rows.fp.mass(logits.data(), n, static_cast<float>(inv), s.max) / sum, 1.0, 1e-6);
  double running = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double p = std::exp((logits[static_cast<size_t>(i)] - top) * inv);
    const int64_t picked = rows.fp.pick(logits.data(), n, static_cast<float>(inv), s.max, running + 0.5 * p);
    EXPECT_TRUE(picked == i || p <= 1e-5 * sum) << picked << " instead of " << i;
    running += p;
  }
}

void check_adam(const Rows& rows, int64_t n) {
  auto p = random_row<float>(n, 17), m = random_row<float>(n, 18, 0.1), v = random_row<float>(n, 19, 0.1);
  const auto g = random_row<float>(n, 20);
  for (float& x : v) x = x * x;
  std::vector<double> want;
  const double lr = 0.01, decay = 0.1, b1 = 0.9, b2 = 0.99, eps = 1e-6, c1 = 1 - 0.9 * 0.9, c2 = 1 - 0.99 * 0.99, scale = 0.5;
  for (size_t i = 0; i < p.size(); ++i) {
    const double gi = g[i] * scale, mi = b1 * m[i] + (1 - b1) * gi, vi = b2 * v[i] + (1 - b2) * gi * gi;
    want.push_back(p[i] * (1 - lr * decay) - lr * mi / c1 / (std::sqrt(vi / c2) + eps));
  }
  Guarded<Half> half(n);
  const AdamArgs args{p.data(), half.data(), g.data(), m.data(), v.data(), 0.5f, 0.01f, 0.9f, 0.99f, 1e-6f, 0.1f, static_cast<float>(c1), static_cast<float>(c2)};
  rows.fp.adamw(args, 0, n);
  expect_near(p, want, "adamw");
  const auto rounded = half.row();
  for (size_t i = 0; i < p.size(); ++i) ASSERT_EQ(rounded[i], to_half(p[i]));
  double squares = 0;
  for (float x : g) squares += static_cast<double>(x) * x;
  EXPECT_NEAR(rows.fp.sum_of_squares(g.data(), n) / squares, 1.0, 1e-6);
}

template <class T>
void check_all(const Rows& rows) {
  for (int64_t n : kWidths) {
    SCOPED_TRACE(testing::Message() << rows.isa << ", " << sizeof(T) << " bytes, width " << n);
    check_norm(table_of<T>(rows), n);
    check_swiglu(table_of<T>(rows), n);
    check_rope(table_of<T>(rows), n);
    check_softmax(table_of<T>(rows), n);
    check_sums(table_of<T>(rows), n);
    check_dot_tile(table_of<T>(rows), n);
    check_logits<T>(rows, n);
  }
}

TEST(Rows, TheBaseTableIsAlwaysThereAndTheBestIsUsed) {
  ASSERT_FALSE(all_rows().empty());
  EXPECT_STREQ(all_rows().front()->isa, "base");
  EXPECT_EQ(all_rows().back(), &rows());
}

TEST(Rows, EveryTableFollowsTheFormulasInFloat32) {
  for (const Rows* rows : all_rows()) check_all<float>(*rows);
}

TEST(Rows, EveryTableFollowsTheFormulasInBfloat16) {
  for (const Rows* rows : all_rows()) check_all<Half>(*rows);
}

TEST(Rows, EveryTableUpdatesAsAdamWSays) {
  for (const Rows* rows : all_rows())
    for (int64_t n : kWidths) check_adam(*rows, n);
}

TEST(Rows, AColdTokenIsNeverPickedWhenRoundingLeavesTheThresholdAtTheTop) {
  const std::vector<float> logits = {0, 1, -200, 2, -200, -200, -200};
  for (const Rows* rows : all_rows()) EXPECT_EQ(rows->fp.pick(logits.data(), 7, 1.0f, 2.0f, 1e9f), 3) << rows->isa;
}

TEST(Rows, TheMassOfALargeVocabularyIsTheSumOfItsIds) {
  const int64_t n = 150'000;
  const auto logits = random_row<float>(n, 21, 0.5);
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  for (const Rows* rows : all_rows()) {
    EXPECT_NEAR(rows->fp.mass(logits.data(), n, 1.0f, top) / sum, 1.0, 2e-7) << rows->isa;
    EXPECT_EQ(rows->fp.pick(logits.data(), n, 1.0f, top, sum * (1 - 1e-6)), n - 1) << rows->isa;
    EXPECT_LT(rows->fp.pick(logits.data(), n, 1.0f, top, sum * (1 - 1e-4)), n - 5) << rows->isa;
  }
}

TEST(Rows, NotANumberStaysOne) {
  const std::vector<float> x = {1, NAN, 2};
  for (const Rows* rows : all_rows()) {
    std::vector<Half> h(3);
    rows->bf16.from_float(x.data(), 3, h.data());
    EXPECT_TRUE(std::isnan(value_of(h[1]))) << rows->isa;
    EXPECT_FALSE(std::isfinite(rows->fp.sum_of_squares(x.data(), 3))) << rows->isa;
  }
}

}  // namespace
}  // namespace tandem::model::kernel::cpu
