// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/cpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <vector>

#include "tandem/model/kernel/cpu/row_loop.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kSliceRows = 64;  // rows whose weight gradients add up together; fixed, so threads do not change the bits

// Sums rows into `sums` slice by slice: run(row, partial) adds one row to a partial sum.
void sum_rows(int64_t count, int64_t width, const at::Tensor& sums, const std::function<void(int64_t, float*)>& run) {
  const int64_t slices = (count + kSliceRows - 1) / kSliceRows;
  at::Tensor partial = at::zeros({slices, width}, at::kFloat);
  float* base = partial.data_ptr<float>();
  at::parallel_for(0, slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      for (int64_t r = s * kSliceRows; r < std::min(count, (s + 1) * kSliceRows); ++r) run(r, base + s * width);
  });
  if (!sums.defined()) return;
  for (int64_t s = 0; s < slices; ++s) rows().fp.add(base + s * width, width, sums.data_ptr<float>());
}

at::Tensor embed(const at::Tensor& table, const at::Tensor& ids, int64_t first_row) {
  const int64_t T = ids.size(0), H = table.size(1), num_rows = table.size(0);
  at::Tensor x = at::empty({T, H}, table.options().requires_grad(false));
  const auto element = static_cast<int64_t>(table.element_size());
  const int64_t* id = ids.data_ptr<int64_t>();
  const char* from = pointer<char>(table);
  char* to = pointer<char>(x);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = id[t] - first_row;
    char* out = to + t * H * element;
    if (row < 0 || row >= num_rows) std::memset(out, 0, static_cast<size_t>(H * element));
    else std::memcpy(out, from + row * H * element, static_cast<size_t>(H * element));
  }
  return x;
}

void embed_backward(at::Tensor& grad, const at::Tensor& dx, const at::Tensor& ids, int64_t first_row) {
  const int64_t H = dx.size(1);
  for (int64_t t = 0; t < dx.size(0); ++t) {
    const int64_t row = ids.data_ptr<int64_t>()[t] - first_row;
    if (row < 0 || row >= grad.size(0)) continue;
    by_dtype(dx, [&]<class T>(T) { row_table<T>().add_columns(pointer<T>(dx) + t * H, H, grad.data_ptr<float>() + row * H); });
  }
}

Normed add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps) {
  const int64_t T = x.size(0), H = x.size(1);
  Normed out{delta.defined() ? at::empty({T, H}, x.options()) : x, at::empty({T, H}, x.options()),
             at::empty({T}, x.options().dtype(at::kFloat))};
  for_rows_of(x, H, [&]<class E>(E, int64_t begin, int64_t end) {
    const E *from = pointer<E>(x), *d = pointer<E>(delta), *w = pointer<E>(weight);
    E *sum = pointer<E>(out.sum_TH), *y = pointer<E>(out.normed_TH);
    float* r = out.rstd_T.data_ptr<float>();
    for (int64_t t = begin; t < end; ++t)
      row_table<E>().add_rms_norm(from + t * H, d ? d + t * H : nullptr, w, static_cast<float>(eps), H, sum + t * H, y + t * H, r + t);
  });
  return out;
}

at::Tensor rms_norm_backward(const NormGrad& in, at::Tensor& weight_grad) {
  const at::Tensor& x = in.x_TH;
  const int64_t T = x.size(0), H = x.size(1);
  at::Tensor dx = at::empty_like(x);
  sum_rows(T, H, weight_grad, [&](int64_t r, float* partial) {
    by_dtype(x, [&]<class E>(E) {
      const E* residual = in.d_sum_TH.defined() ? pointer<E>(in.d_sum_TH) + r * H : nullptr;
      row_table<E>().rms_norm_backward(pointer<E>(in.d_normed_TH) + r * H, pointer<E>(x) + r * H, pointer<E>(in.weight_H),
                                       in.rstd_T.data_ptr<float>()[r], residual, H, pointer<E>(dx) + r * H, partial);
    });
  });
  return dx;
}

// run(head, norm) for the query and key heads of a row: `norm` 0 is the queries', 1 the keys'.
template <class Run>
void for_normed_heads(const AttentionShape& shape, const Run& run) {
  for (int64_t h = 0; h < shape.num_heads + shape.num_kv_heads; ++h) run(h, h < shape.num_heads ? 0 : 1);
}

NormedHeads head_norm(const at::Tensor& qkv, const at::Tensor& norms, double eps, const AttentionShape& shape) {
  const int64_t T = qkv.size(0), W = shape.width(), D = shape.head_dim, heads = shape.num_heads + shape.num_kv_heads;
  NormedHeads out{at::empty_like(qkv), at::empty({T, heads}, qkv.options().dtype(at::kFloat))};
  for_rows_of(qkv, W, [&]<class E>(E, int64_t begin, int64_t end) {
    const E *from = pointer<E>(qkv), *weights = pointer<E>(norms);
    E* to = pointer<E>(out.qkv_TW);
    float* r = out.rstd_TN.data_ptr<float>();
    for (int64_t t = begin; t < end; ++t) {
      const E* x = from + t * W;
      E* y = to + t * W;
      for_normed_heads(shape, [&](int64_t h, int64_t n) {
        row_table<E>().add_rms_norm(x + h * D, nullptr, weights + n * D, static_cast<float>(eps), D, nullptr, y + h * D,
                                    r + t * heads + h);
      });
      std::copy(x + heads * D, x + W, y + heads * D);
    }
  });
  return out;
}

at::Tensor head_norm_backward(const HeadNormGrad& in, const AttentionShape& shape, at::Tensor& norms_grad) {
  const int64_t W = shape.width(), D = shape.head_dim, heads = in.rstd_TN.size(1);
  at::Tensor dx = at::empty_like(in.qkv_TW);
  sum_rows(in.qkv_TW.size(0), 2 * D, norms_grad, [&](int64_t r, float* partial) {
    by_dtype(in.qkv_TW, [&]<class E>(E) {
      const E *dy = pointer<E>(in.d_TW) + r * W, *x = pointer<E>(in.qkv_TW) + r * W;
      E* out = pointer<E>(dx) + r * W;
      for_normed_heads(shape, [&](int64_t h, int64_t n) {
        const float r_std = in.rstd_TN.data_ptr<float>()[r * heads + h];
        row_table<E>().rms_norm_backward(dy + h * D, x + h * D, pointer<E>(in.norms_2D) + n * D, r_std, nullptr, D, out + h * D,
                                         partial + n * D);
      });
      std::copy(dy + heads * D, dy + W, out + heads * D);
    });
  });
  return dx;
}

at::Tensor rope(const at::Tensor& qkv, const at::Tensor& bias, const Rotation& rotation, bool forward) {
  at::Tensor out = at::empty_like(qkv);
  const AttentionShape& shape = rotation.shape;
  const int64_t W = shape.width(), D = shape.head_dim;
  for_rows_of(qkv, W, [&]<class T>(T, int64_t begin, int64_t end) {
    const T *x = pointer<T>(qkv), *b = pointer<T>(bias);
    const float* angles = rotation.cos_sin_PD.data_ptr<float>();
    const int64_t* position = rotation.positions_T.data_ptr<int64_t>();
    T* y = pointer<T>(out);
    for (int64_t t = begin; t < end; ++t)
      row_table<T>().rope(x + t * W, b, angles + position[t] * D, shape.num_heads + 2 * shape.num_kv_heads,
                          shape.num_heads + shape.num_kv_heads, D, forward ? 1.0f : -1.0f, y + t * W);
  });
  return out;
}

void add_rows(at::Tensor& sums, const at::Tensor& d) {
  const int64_t W = d.size(1);
  sum_rows(d.size(0), W, sums, [&](int64_t r, float* partial) {
    by_dtype(d, [&]<class T>(T) { row_table<T>().add_columns(pointer<T>(d) + r * W, W, partial); });
  });
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t T = gate_up.size(0), F = gate_up.size(1) / 2;
  at::Tensor out = at::empty({T, F}, gate_up.options());
  for_rows_of(gate_up, F, [&]<class E>(E, int64_t begin, int64_t end) {
    const E* from = pointer<E>(gate_up);
    E* to = pointer<E>(out);
    for (int64_t t = begin; t < end; ++t) row_table<E>().swiglu(from + 2 * t * F, F, to + t * F);
  });
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& gate_up, const at::Tensor& d) {
  at::Tensor d_gate_up = at::empty_like(gate_up);
  const int64_t F = d.size(1);
  for_rows_of(d, F, [&]<class T>(T, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      row_table<T>().swiglu_backward(pointer<T>(gate_up) + 2 * t * F, pointer<T>(d) + t * F, F, pointer<T>(d_gate_up) + 2 * t * F);
  });
  return d_gate_up;
}

// move(short row, long row, bytes) for each row of the short tensor and the row of the long one that `rows` lists for it.
template <class Move>
void for_listed(const at::Tensor& listed, const at::Tensor& few, const at::Tensor& many, const Move& move) {
  const size_t bytes = static_cast<size_t>(many.size(1)) * many.element_size();
  char *short_rows = pointer<char>(few), *long_rows = pointer<char>(many);
  const int64_t* row = listed.data_ptr<int64_t>();
  for_rows(listed.numel(), many.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      move(short_rows + static_cast<size_t>(i) * bytes, long_rows + static_cast<size_t>(row[i]) * bytes, bytes);
  });
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& listed) {
  at::Tensor out = at::empty({listed.numel(), x.size(1)}, x.options().requires_grad(false));
  for_listed(listed, out, x, [](char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); });
  return out;
}

at::Tensor scatter(const at::Tensor& x, const at::Tensor& listed, int64_t num_rows) {
  at::Tensor out = at::zeros({num_rows, x.size(1)}, x.options().requires_grad(false));
  for_listed(listed, x, out, [](const char* from, char* to, size_t bytes) { std::memcpy(to, from, bytes); });
  return out;
}

at::Tensor scale(const at::Tensor& x, const at::Tensor& factors) {
  const int64_t F = x.size(1);
  const float* w = factors.data_ptr<float>();
  at::Tensor out = at::empty_like(x);
  for_rows_of(x, F, [&]<class E>(E, int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(F));
    for (int64_t r = begin; r < end; ++r) {
      row_table<E>().to_float(pointer<E>(x) + r * F, F, row.data());
      for (float& value : row) value *= w[r];
      row_table<E>().from_float(row.data(), F, pointer<E>(out) + r * F);
    }
  });
  return out;
}

at::Tensor dot(const at::Tensor& a, const at::Tensor& b) {
  const int64_t F = a.size(1);
  at::Tensor out = at::empty({a.size(0)}, a.options().dtype(at::kFloat));
  for_rows_of(a, F, [&]<class E>(E, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      out.data_ptr<float>()[r] = row_table<E>().dot(pointer<E>(a) + r * F, pointer<E>(b) + r * F, F);
  });
  return out;
}

}  // namespace

const RowKernels kRowKernels = {embed,  embed_backward, add_rms_norm,    rms_norm_backward, head_norm, head_norm_backward, rope,
                                add_rows, swiglu,       swiglu_backward, gather,            scatter,   scale,              dot};

}  // namespace tandem::model::kernel::cpu
