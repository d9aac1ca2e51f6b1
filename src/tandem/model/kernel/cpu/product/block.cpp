// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/block.h"

#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstring>

#include "tandem/base/check.h"

namespace tandem::model::kernel::cpu {
namespace {

// 16 bytes of numbers.
template <class T>
struct Lanes {
  static constexpr int64_t kCount = 16 / static_cast<int64_t>(sizeof(T));
  typedef T Vector __attribute__((vector_size(16)));
  // a0 b0 a1 b1 ... of the first halves, or of the second ones
  static Vector low(Vector a, Vector b) {
    if constexpr (sizeof(T) == 2) return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    else return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  }
  static Vector high(Vector a, Vector b) {
    if constexpr (sizeof(T) == 2) return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    else return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  }
};

// A square of as many rows as a vector has numbers: shuffled like cards, row i with the one half a square below, as often as a row number
// has bits.
template <class T>
void transpose_square(const T* from, int64_t ld_from, T* to, int64_t ld_to) {
  using L = Lanes<T>;
  typename L::Vector rows[L::kCount], next[L::kCount];
  for (int64_t i = 0; i < L::kCount; ++i) std::memcpy(&rows[i], from + i * ld_from, sizeof(rows[i]));
  for (int64_t bit = 1; bit < L::kCount; bit *= 2) {
    for (int64_t i = 0; i < L::kCount / 2; ++i) {
      next[2 * i] = L::low(rows[i], rows[i + L::kCount / 2]);
      next[2 * i + 1] = L::high(rows[i], rows[i + L::kCount / 2]);
    }
    std::copy(next, next + L::kCount, rows);
  }
  for (int64_t i = 0; i < L::kCount; ++i) std::memcpy(to + i * ld_to, &rows[i], sizeof(rows[i]));
}

// Tile by tile.
template <class T>
void transpose_tiles(const Turn& turn, const T* from, T* to) {
  constexpr int64_t kSide = Lanes<T>::kCount;
  const int64_t rows = turn.rows / kSide * kSide, columns = turn.columns / kSide * kSide;
  for (int64_t r = 0; r < rows; r += kSide)
    for (int64_t c = 0; c < columns; c += kSide)
      transpose_square(from + r * turn.ld_from + c, turn.ld_from, to + c * turn.ld_to + r, turn.ld_to);
  for (int64_t r = 0; r < turn.rows; ++r)
    for (int64_t c = r < rows ? columns : 0; c < turn.columns; ++c)
      std::memcpy(to + c * turn.ld_to + r, from + r * turn.ld_from + c, sizeof(T));  // a pair is no number of its own
}

// Two rows as one row of pairs; zeros stand for a missing second.
void interleave_rows(const Half* first, const Half* second, int64_t columns, Half* to) {
  using L = Lanes<Half>;
  int64_t c = 0;
  for (; second && c + L::kCount <= columns; c += L::kCount) {
    L::Vector a, b;
    std::memcpy(&a, first + c, sizeof a);
    std::memcpy(&b, second + c, sizeof b);
    const L::Vector pairs[2] = {L::low(a, b), L::high(a, b)};
    std::memcpy(to + 2 * c, pairs, sizeof pairs);
  }
  for (; c < columns; ++c) {
    to[2 * c] = first[c];
    to[2 * c + 1] = second ? second[c] : Half{0};
  }
}

}  // namespace

void multiply(const BlockProduct& p, const Half* a, const Half* b, float* c) {
#ifdef CPUBLAS_BRGEMM_BF16BF16F32
  at::native::cpublas::brgemm(p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.adds, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, true);
#endif
}

void release_kernels() {
#ifdef CPUBLAS_BRGEMM_BF16BF16F32
  at::native::cpublas::brgemm_release(true);
#endif
}

Halves halves(int64_t elements) {
  return Halves(static_cast<Half*>(::operator new(static_cast<size_t>(elements) * sizeof(Half), kBlockAlign)));
}

void transpose(const Turn& turn, const Half* from, Half* to) { transpose_tiles(turn, from, to); }

void transpose_pairs(const Turn& turn, const Half* from, Half* to) {
  TANDEM_CHECK(turn.ld_from % 2 == 0 && reinterpret_cast<uintptr_t>(from) % sizeof(uint32_t) == 0, "rows begin every ", turn.ld_from);
  transpose_tiles({turn.rows, turn.columns / 2, turn.ld_from / 2, turn.ld_to}, reinterpret_cast<const uint32_t*>(from),
                  reinterpret_cast<uint32_t*>(to));
}

void interleave(const Interleave& shape, const Half* from, Half* to) {
  for (int64_t r = 0; r < shape.filled; r += 2, to += 2 * shape.columns) {
    const Half* row = from + r * shape.ld_from;
    if (r < shape.rows) interleave_rows(row, r + 1 < shape.rows ? row + shape.ld_from : nullptr, shape.columns, to);
    else std::fill_n(to, 2 * shape.columns, Half{0});
  }
}

}  // namespace tandem::model::kernel::cpu
