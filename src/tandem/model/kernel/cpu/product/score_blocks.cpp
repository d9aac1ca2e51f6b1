// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/score_blocks.h"

#include <algorithm>
#include <bit>

#include "tandem/model/kernel/cpu/product/block.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kSpread = 32;        // between rows: a power of two apart, they would share cache sets
constexpr int64_t kQueryRowsAtOnce = 64;  // of one product
constexpr int64_t kMixedKeys = 256;    // that one product sums over
constexpr int64_t kMixedRows = 512;    // that one product of a transposed matrix sums over

int64_t fill_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// At most four strides from one power of two to the next: each has kernels of its own.
int64_t stride_of(int64_t keys) {
  const int64_t step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(keys))) / 4;
  return fill_up(keys, std::max(step, ScoreBlocks::kKeyStep)) + kSpread;
}

}  // namespace

ScoreBlocks::ScoreBlocks(int64_t R, int64_t keys, int64_t D)
    : rows(fill_up(R, kRowStep)), keys(keys), head_dim(D), stride(stride_of(keys)) {}

int64_t ScoreBlocks::filled_keys() const { return fill_up(keys, kKeyStep); }

void ScoreBlocks::multiply_by_keys(const Half* q, const Half* k, int64_t k_stride, float* scores) const {
  const Halves packed = halves(head_dim * kKeyStep);
  for (int64_t key = 0; key < keys; key += kKeyStep) {
    const int64_t n = std::min(kKeyStep, keys - key);
    if (n < kKeyStep) std::fill_n(packed.get(), head_dim * kKeyStep, Half{0});
    transpose_pairs({n, head_dim, k_stride, kKeyStep}, k + key * k_stride, packed.get());
    for (int64_t row = 0; row < rows; row += kQueryRowsAtOnce)
      multiply({std::min(kQueryRowsAtOnce, rows - row), kKeyStep, head_dim, head_dim, kKeyStep, stride, false}, q + row * head_dim,
               packed.get(), scores + row * stride + key);
  }
  release_kernels();
}

void ScoreBlocks::mix(const Half* p, const Half* v, int64_t v_stride, float* out) const {
  const int64_t filled = filled_keys();
  const Halves packed = halves(kMixedKeys * head_dim);
  for (int64_t key = 0, n; key < filled; key += n) {
    n = filled - key >= kMixedKeys ? kMixedKeys : kKeyStep;
    interleave({std::min(n, keys - key), n, head_dim, v_stride}, v + key * v_stride, packed.get());
    for (int64_t row = 0; row < rows; row += kQueryRowsAtOnce)
      multiply({std::min(kQueryRowsAtOnce, rows - row), head_dim, n, stride, head_dim, head_dim, key > 0}, p + row * stride + key,
               packed.get(), out + row * head_dim);
  }
  release_kernels();
}

void ScoreBlocks::add_transposed_mix(const Half* p, const Half* q, float* out) const {
  const Halves packed = halves(kMixedRows * head_dim), turned = halves(kKeyStep * (kMixedRows + kSpread));
  for (int64_t row = 0; row < rows; row += kMixedRows) {
    const int64_t m = std::min(kMixedRows, rows - row);
    interleave({m, m, head_dim, head_dim}, q + row * head_dim, packed.get());
    for (int64_t key = 0; key < keys; key += kKeyStep) {
      transpose({m, kKeyStep, stride, kMixedRows + kSpread}, p + row * stride + key, turned.get());
      multiply({kKeyStep, head_dim, m, kMixedRows + kSpread, head_dim, head_dim, true}, turned.get(), packed.get(), out + key * head_dim);
    }
  }
  release_kernels();
}

}  // namespace tandem::model::kernel::cpu
