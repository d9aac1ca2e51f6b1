// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every product by libtorch's block kernels is made of: one call of a kernel, and the order its second factor is read in. For the
// files of this folder.

#include <cstdint>
#include <memory>
#include <new>

#include "tandem/model/kernel/cpu/rows.h"

namespace tandem::model::kernel::cpu {

/// c[m,n] = a[m,k] b, plus what c holds if `adds`; b is packed: [k/2][ldb] pairs. Each thread of libtorch makes a kernel for
/// each set of these values and keeps it, so callers take few different ones.
struct BlockProduct {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool adds;
};
/// No effect where libtorch has no such kernels.
void multiply(const BlockProduct& p, const Half* a, const Half* b, float* c);
/// A thread calls it after its last product: the kernels may hold the processor's matrix unit.
void release_kernels();

inline constexpr std::align_val_t kBlockAlign{64};
struct FreeAligned {
  void operator()(Half* p) const { ::operator delete(p, kBlockAlign); }
};
using Halves = std::unique_ptr<Half[], FreeAligned>;
/// Not set to anything.
Halves halves(int64_t elements);

/// to[c][r] = from[r][c].
struct Turn {
  int64_t rows, columns, ld_from, ld_to;
};
void transpose(const Turn& turn, const Half* from, Half* to);
/// Of pairs of Half: rows of `from` begin at a multiple of 4 bytes, and columns are even; the result has columns / 2 rows, of pairs.
void transpose_pairs(const Turn& turn, const Half* from, Half* to);

/// `rows` rows as rows of pairs, [filled / 2][columns][2]; zeros stand for rows from `rows` to `filled`, which is even.
struct Interleave {
  int64_t rows, filled, columns, ld_from;
};
void interleave(const Interleave& shape, const Half* from, Half* to);

}  // namespace tandem::model::kernel::cpu
