// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/packed.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/model/kernel/cpu/product/brgemm.h"
#include "tandem/model/kernel/cpu/rows.h"
#include "tandem/model/kernel/onednn.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kMostRows = 512;  // above, a plain product is as fast
constexpr int64_t kCacheSteps = 1024;   // of K: a panel's part, and what is fetched ahead of it, stay in the second cache
constexpr int64_t kCacheFloats = 128 * 1024;  // of x, for the same reason
constexpr int64_t kTaskWork = 1 << 17;  // multiplications of full tiles that are worth another thread

int64_t parts(int64_t n, int64_t part) { return (n + part - 1) / part; }

// x w^T for `rows` rows. A task is one tile; a thread's tasks follow the panels, so that it reads its part of w once.
void multiply_rows(const float* x, int64_t rows, const PackedWeight& w, float* out) {
  const FloatTable& table = cpu::rows().fp;
  const int64_t columns = table.panel_columns, tiles = parts(rows, table.panel_rows), K = w.K;
  const float* panels = w.data.data_ptr<float>();
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin / tiles; panel * tiles < end; ++panel) {
      const int64_t first = std::max(begin - panel * tiles, int64_t{0}), last = std::min(end - panel * tiles, tiles);
      for (int64_t k = 0; k < K; k += kCacheSteps) {
        const int64_t steps = std::min(kCacheSteps, K - k);
        const float* part = panels + (panel * K + k) * columns;
        for (int64_t tile = first; tile < last; ++tile) {
          const int64_t row = rows * tile / tiles;
          table.panel_product({.x = x + row * K + k,
                               .x_stride = K,
                               .rows = rows * (tile + 1) / tiles - row,
                               .panel = part,
                               .K = steps,
                               .out = out + row * w.N + panel * columns,
                               .out_stride = w.N,
                               .columns = std::min(columns, w.N - panel * columns),
                               .add = k > 0,
                               .ahead = part + (steps + steps * (tile - first) / (last - first)) * columns,
                               .ahead_step = last - first});
        }
      }
    }
  };
  at::parallel_for(0, parts(w.N, columns) * tiles, parts(kTaskWork, table.panel_rows * K * columns), run);
}

PackedWeight packed(const at::Tensor& data, const at::Tensor& w, bool in_blocks) {
  const int64_t elements = data.is_mkldnn() ? w.numel() : data.numel();
  return {data, w.size(0), w.size(1), in_blocks, kMostRows, elements * static_cast<int64_t>(data.element_size())};
}

PackedWeight pack_float(const at::Tensor& w) {
  const int64_t N = w.size(0), K = w.size(1), columns = rows().fp.panel_columns;
  const PackedWeight copy = packed(at::empty({parts(N, columns), K, columns}, w.options().requires_grad(false)), w, false);
  const float* from = w.data_ptr<float>();
  float* to = copy.data.data_ptr<float>();
  constexpr int64_t kLine = 16;  // floats
  at::parallel_for(0, parts(N, columns), 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t first = 0; first < K; first += kLine)
        for (int64_t j = 0; j < columns; ++j) {
          const int64_t n = panel * columns + j, last = std::min(first + kLine, K);
          for (int64_t k = first; k < last; ++k) to[(panel * K + k) * columns + j] = n < N ? from[n * K + k] : 0;
        }
  });
  return copy;
}

}  // namespace

PackedWeight pack_weight(const Numerics&, const at::Tensor& w) {
  TANDEM_CHECK(w.dim() == 2 && w.is_contiguous() && w.numel() > 0, "weight to pack");
  if (w.scalar_type() == at::kFloat) return pack_float(w);
  if (!onednn_multiplies(w.scalar_type())) return {};
  at::NoGradGuard off;
  return packed(onednn_pack(w.detach()), w, false);
}

PackedWeight pack_head(const Numerics& n, const at::Tensor& w) {
  if (w.scalar_type() == at::kFloat) return pack_weight(n, w);
  if (n.choice.logits != Logits::kBrgemm || !brgemm_serves(w.size(1))) return {};
  return packed(brgemm_pack(w.detach()), w, true);
}

at::Tensor packed_product(const at::Tensor& x, const PackedWeight& w) {
  TANDEM_CHECK(x.size(1) == w.K && x.is_contiguous() && x.scalar_type() == w.data.scalar_type(), "packed product of another shape");
  if (w.in_blocks) {
    at::Tensor out = at::empty({x.size(0), w.N}, x.options().dtype(at::kFloat));
    if (x.size(0) > 0) brgemm_forward_packed(out, x, w.data);
    return out;
  }
  if (x.size(0) > 0 && x.scalar_type() != at::kFloat) return onednn_linear(x, w.data);
  at::Tensor out = at::empty({x.size(0), w.N}, x.options());
  const int64_t rows = x.size(0), together = std::max<int64_t>(64, kCacheFloats / w.K);
  for (int64_t row = 0; row < rows; row += together)
    multiply_rows(x.data_ptr<float>() + row * w.K, std::min(together, rows - row), w, out.data_ptr<float>() + row * w.N);
  return out;
}

}  // namespace tandem::model::kernel::cpu
