// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/brgemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <functional>

#include "tandem/base/check.h"
#include "tandem/model/kernel/cpu/product/block.h"

namespace tandem::model::kernel::cpu {
namespace {

// As measured on a processor with AVX-512: blocks of both factors stay in a core's cache.
constexpr int64_t kBlockBytes = 64 << 10;  // of a packed block
constexpr int64_t kBlockRows = 64;         // of the other factor
constexpr int64_t kInner = 512;            // of a weight gradient's inner dimension
constexpr int64_t kInnerStep = 32;         // what is left of it is filled up to that, for libtorch keeps a kernel for each length
constexpr int64_t kGradColumns = 128;      // of its packed factor
constexpr int64_t kTurnedRow = kInner + 32;  // of its other factor, transposed: rows a power of two apart would share cache sets

const Half* bits_of(const at::Tensor& t) { return static_cast<const Half*>(t.data_ptr()); }

int64_t block_columns(int64_t K) {
  TANDEM_CHECK(brgemm_serves(K), "an inner dimension of ", K);
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(kBlockBytes / (2 * K) + 1))), 32, 256);
}

int64_t num_blocks(int64_t N, int64_t columns) { return (N + columns - 1) / columns; }

// A block of a result, and of the pieces into which its other dimension falls those from `first` to before `last`.
struct Part {
  int64_t block, first, last;
};

// Deals blocks to threads, and their pieces where blocks are few. The bits of a result do not depend on it.
void for_parts(int64_t blocks, int64_t pieces, const std::function<void(const Part&)>& work) {
  if (blocks == 0 || pieces == 0) return;
  const int64_t parts = std::clamp<int64_t>(num_blocks(at::get_num_threads(), blocks), 1, pieces);
  at::parallel_for(0, blocks * parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t part = i % parts;
      work({i / parts, part * pieces / parts, (part + 1) * pieces / parts});
    }
    release_kernels();
  });
}

// The block's rows of w as columns of pairs.
void pack_block(const at::Tensor& w, int64_t block, int64_t columns, Half* packed) {
  const int64_t n0 = block * columns, n = std::min(columns, w.size(0) - n0);
  transpose_pairs({n, w.size(1), w.stride(0), columns}, bits_of(w) + n0 * w.stride(0), packed);
}

// Pieces of x are kBlockRows rows.
void multiply_block(at::Tensor& out, const at::Tensor& x, const Part& part, int64_t columns, const Half* packed) {
  const int64_t n0 = part.block * columns, n = std::min(columns, out.size(1) - n0), last = std::min(x.size(0), part.last * kBlockRows);
  for (int64_t m0 = part.first * kBlockRows; m0 < last; m0 += kBlockRows)
    multiply({std::min(kBlockRows, last - m0), n, x.size(1), x.stride(0), columns, out.stride(0), false}, bits_of(x) + m0 * x.stride(0),
             packed, out.data_ptr<float>() + m0 * out.stride(0) + n0);
}

bool multiplies() {
  constexpr int64_t M = 2, N = 16, K = 4;
  at::Tensor x = at::zeros({M, K}, at::kBFloat16), w = at::zeros({N, K}, at::kBFloat16), out = at::zeros({M, N}, at::kFloat);
  for (int64_t i = 0; i < M * K; ++i) x.data_ptr<at::BFloat16>()[i] = static_cast<float>(i + 1);
  for (int64_t i = 0; i < N * K; ++i) w.data_ptr<at::BFloat16>()[i] = static_cast<float>(i % 7 - 3);
  try {
    brgemm_forward(out, x, w);
  } catch (const std::exception&) {  // of libtorch or of oneDNN
    return false;
  }
  return out.equal(x.to(at::kFloat).mm(w.to(at::kFloat).t()));
}

}  // namespace

bool brgemm_available() {
  static const bool does = multiplies();
  return does;
}

bool brgemm_serves(int64_t K) { return K % 2 == 0; }

void brgemm_forward(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  const int64_t N = w.size(0), K = w.size(1), columns = block_columns(K);
  for_parts(num_blocks(N, columns), num_blocks(x.size(0), kBlockRows), [&](const Part& part) {
    const Halves packed = halves(K * columns);
    pack_block(w, part.block, columns, packed.get());
    multiply_block(out, x, part, columns, packed.get());
  });
}

at::Tensor brgemm_pack(const at::Tensor& w) {
  const int64_t N = w.size(0), K = w.size(1), columns = block_columns(K), blocks = num_blocks(N, columns);
  at::Tensor packed = at::zeros({blocks, K / 2, columns, 2}, w.options().requires_grad(false));
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
      pack_block(w, block, columns, static_cast<Half*>(packed.data_ptr()) + block * K * columns);
  });
  return packed;
}

void brgemm_forward_packed(at::Tensor& out, const at::Tensor& x, const at::Tensor& packed) {
  const int64_t K = x.size(1), columns = packed.size(2);
  TANDEM_CHECK(packed.size(1) * 2 == K && packed.size(0) == num_blocks(out.size(1), columns), "packed for another shape");
  for_parts(packed.size(0), num_blocks(x.size(0), kBlockRows),
            [&](const Part& part) { multiply_block(out, x, part, columns, bits_of(packed) + part.block * K * columns); });
}

void brgemm_weight_grad(at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x) {
  const int64_t M = dy.size(0), N = dy.size(1), K = x.size(1);
  const Halves packed = halves(kInner * K);
  const int64_t columns = std::min(K, kGradColumns);
  for (int64_t m0 = 0; m0 < M; m0 += kInner) {
    const int64_t m = std::min(kInner, M - m0), filled = num_blocks(m, kInnerStep) * kInnerStep;
    at::parallel_for(0, filled / 2, 16, [&](int64_t first, int64_t last) {
      interleave({std::max<int64_t>(0, m - 2 * first), 2 * (last - first), K, x.stride(0)}, bits_of(x) + (m0 + 2 * first) * x.stride(0),
                 packed.get() + 2 * first * K);
    });
    for_parts(num_blocks(N, kBlockRows), num_blocks(K, columns), [&](const Part& part) {
      const Halves turned = halves(kBlockRows * kTurnedRow);
      const int64_t n0 = part.block * kBlockRows, n = std::min(kBlockRows, N - n0), last = std::min(K, part.last * columns);
      transpose({m, n, dy.stride(0), kTurnedRow}, bits_of(dy) + m0 * dy.stride(0) + n0, turned.get());
      for (int64_t i = 0; i < n; ++i) std::fill_n(turned.get() + i * kTurnedRow + m, filled - m, Half{0});
      for (int64_t k0 = part.first * columns; k0 < last; k0 += columns)
        multiply({n, std::min(columns, last - k0), filled, kTurnedRow, K, dw.stride(0), true}, turned.get(), packed.get() + 2 * k0,
                 dw.data_ptr<float>() + n0 * dw.stride(0) + k0);
    });
  }
}

}  // namespace tandem::model::kernel::cpu
