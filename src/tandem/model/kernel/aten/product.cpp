// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <functional>

#include "tandem/base/check.h"
#include "tandem/device/device.h"
#include "tandem/model/kernel/aten/aten.h"
#include "tandem/model/kernel/onednn.h"

namespace tandem::model::kernel::aten {
namespace {

constexpr int64_t kCopyElements = 1 << 22;  // of a weight that are fp32 at a time
constexpr int64_t kCopyRows = 1024;         // of activations
constexpr int64_t kMostPackedRows = 512;    // above, a plain product is as fast

bool can_compute(const GemmChoice& choice, c10::ScalarType) { return choice == GemmChoice{}; }

// out = x w^T. On the processor oneDNN's linear multiplies few fp32 rows up to twice as fast as at::mm, whose library packs the weight for
// each product, and many about as fast.
void multiply(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  const bool is_host = x.is_cpu() || device::backend_of(x.device()).has_host_memory;  // a fake device has the processor's bits
  if (is_host && x.scalar_type() == at::kFloat && onednn_multiplies(at::kFloat)) onednn_linear_out(out, x, w);
  else at::mm_out(out, x, w.t());
}

GemmChoice only_choice(c10::ScalarType) { return {}; }

// run(out, x) for all rows at once, or in parity mode for kParityRows at a time.
void in_parts(const Numerics& n, at::Tensor& out, const at::Tensor& x, const std::function<void(at::Tensor&, const at::Tensor&)>& run) {
  if (!n.parity) return run(out, x);
  for (int64_t begin = 0; begin < x.size(0); begin += kParityRows) {
    const int64_t rows = std::min(kParityRows, x.size(0) - begin);
    at::Tensor part = at::empty({kParityRows, out.size(1)}, out.options());
    run(part, at::constant_pad_nd(x.narrow(0, begin, rows), {0, 0, 0, kParityRows - rows}));
    out.narrow(0, begin, rows).copy_(part.narrow(0, 0, rows));
  }
}

void forward(const Numerics& n, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  TANDEM_CHECK(x.size(1) == w.size(1) && out.size(0) == x.size(0) && out.size(1) == w.size(0), "linear shapes");
  if (x.size(0) == 0) return;
  in_parts(n, out, x, [&](at::Tensor& part, const at::Tensor& some) { multiply(part, some, w); });
}

// Of bfloat16 a product would round its result, so some rows of w at a time are multiplied as fp32.
void forward_float(const Numerics& n, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  if (x.scalar_type() == at::kFloat) return forward(n, out, x, w);
  if (out.is_cuda() && !n.parity && x.size(0) > 0) {
    at::mm_out(out, x, w.t(), at::kFloat);
    return;
  }
  const at::Tensor x_float = in_float(x);
  const int64_t step = std::max<int64_t>(1, kCopyElements / w.size(1));
  for (int64_t begin = 0; begin < w.size(0); begin += step) {
    const int64_t rows = std::min(step, w.size(0) - begin);
    at::Tensor part = out.narrow(1, begin, rows);
    forward(n, part, x_float, in_float(w.narrow(0, begin, rows)));
  }
}

void input_grad(const Numerics&, at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) {
  if (dy.size(0) > 0) at::mm_out(dx, dy, w);
}

void weight_grad(const Numerics&, at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x) {
  if (dw.is_cuda() && dy.scalar_type() != at::kFloat) {
    const int64_t rows = std::max<int64_t>(1, kDeviceSumElements / x.size(1));
    for (int64_t begin = 0; begin < dw.size(0) && dy.size(0) > 0; begin += rows) {
      const int64_t n = std::min(rows, dw.size(0) - begin);
      dw.narrow(0, begin, n).add_(at::mm(dy.narrow(1, begin, n).t(), x, at::kFloat));
    }
    return;
  }
  const int64_t step = dy.scalar_type() == at::kFloat ? std::max<int64_t>(1, dy.size(0)) : kCopyRows;
  for (int64_t begin = 0; begin < dy.size(0); begin += step) {
    const int64_t rows = std::min(step, dy.size(0) - begin);
    dw.addmm_(in_float(dy.narrow(0, begin, rows)).t(), in_float(x.narrow(0, begin, rows)));
  }
}

// run(rows of `rows`, rows of the weight) for each expert that has any, as {first, number}.
void for_experts(const ExpertRows& rows, const at::Tensor& w, const std::function<void(int64_t, int64_t, const at::Tensor&)>& run) {
  const int64_t N = w.size(0) / rows.num_experts();
  for (int64_t e = 0; e < rows.num_experts(); ++e) {
    const int64_t first = rows.offsets[static_cast<size_t>(e)], count = rows.offsets[static_cast<size_t>(e) + 1] - first;
    if (count > 0) run(first, count, w.narrow(0, e * N, N));
  }
}

// One launch for all experts, where the library has it: bfloat16 on CUDA, rows of multiples of 16 bytes. Not in parity mode.
bool by_library(const Numerics& n, const at::Tensor& x, const at::Tensor& w, const ExpertRows& rows) {
  const int64_t N = w.size(0) / rows.num_experts();
  return x.is_cuda() && !n.parity && x.scalar_type() == at::kBFloat16 && x.size(0) > 0 && N % 8 == 0 && w.size(1) % 8 == 0;
}

at::Tensor grouped_forward(const Numerics& n, const at::Tensor& x, const at::Tensor& w, const ExpertRows& rows) {
  if (by_library(n, x, w, rows)) return grouped_by_library(x, w, rows, /*forward=*/true);
  const at::Tensor y = at::empty({x.size(0), w.size(0) / rows.num_experts()}, x.options());
  for_experts(rows, w, [&](int64_t first, int64_t count, const at::Tensor& expert) {
    at::Tensor out = y.narrow(0, first, count);
    forward(n, out, x.narrow(0, first, count), expert);
  });
  return y;
}

at::Tensor grouped_input_grad(const Numerics& n, const at::Tensor& dy, const at::Tensor& w, const ExpertRows& rows) {
  if (by_library(n, dy, w, rows)) return grouped_by_library(dy, w, rows, /*forward=*/false);
  const at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  for_experts(rows, w, [&](int64_t first, int64_t count, const at::Tensor& expert) {
    at::Tensor out = dx.narrow(0, first, count);
    input_grad(n, out, dy.narrow(0, first, count), expert);
  });
  return dx;
}

void grouped_weight_grad(const Numerics& n, at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const ExpertRows& rows) {
  for_experts(rows, dw, [&](int64_t first, int64_t count, at::Tensor expert) {
    weight_grad(n, expert, dy.narrow(0, first, count), x.narrow(0, first, count));
  });
}

// On the processor oneDNN reads a weight in its own order a tenth faster.
PackedWeight pack(const Numerics&, const at::Tensor& w) {
  if (!w.is_cpu() || w.scalar_type() != at::kFloat || !onednn_multiplies(at::kFloat)) return {};
  at::NoGradGuard off;
  return {onednn_pack(w.detach()), w.size(0), w.size(1), /*in_blocks=*/false, kMostPackedRows, static_cast<int64_t>(w.nbytes())};
}

at::Tensor packed_product(const at::Tensor& x, const PackedWeight& w) {
  return x.size(0) > 0 ? onednn_linear(x, w.data) : at::empty({0, w.N}, x.options());
}

}  // namespace

at::Tensor grouped_by_library(const at::Tensor& rows_SX, const at::Tensor& w, const ExpertRows& rows, bool forward) {
  const int64_t E = rows.num_experts();
  at::Tensor ends = at::empty({E}, at::kInt);
  for (int64_t e = 0; e < E; ++e) ends.data_ptr<int32_t>()[e] = static_cast<int32_t>(rows.offsets[static_cast<size_t>(e) + 1]);
  const at::Tensor experts_ENK = w.view({E, w.size(0) / E, w.size(1)});
  return at::_grouped_mm(rows_SX.contiguous(), forward ? experts_ENK.transpose(1, 2) : experts_ENK,
                         ends.to(rows_SX.device(), /*non_blocking=*/true));
}

const ProductKernels kProductKernels = {can_compute, only_choice, nullptr,         only_choice,        forward,
                                        forward_float, input_grad, weight_grad,    grouped_forward,    grouped_input_grad,
                                        grouped_weight_grad, pack, pack,          packed_product};

}  // namespace tandem::model::kernel::aten
