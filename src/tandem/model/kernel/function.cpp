// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/function.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>

#include "tandem/base/check.h"
#include "tandem/model/kernel/packed.h"
#include "tandem/model/kernel/step.h"

namespace tandem::model::kernel {
namespace {

constexpr int64_t kSliceRows = 64;  // rows whose weight gradients add up together; fixed, so threads do not change the bits

// Sums rows into `sums` slice by slice: run(row, partial) adds one row to a partial sum.
void sum_rows(int64_t rows, int64_t width, at::Tensor sums, const std::function<void(int64_t, float*)>& run) {
  const int64_t slices = (rows + kSliceRows - 1) / kSliceRows;
  at::Tensor partial = at::zeros({slices, width}, at::kFloat);
  float* base = partial.data_ptr<float>();
  at::parallel_for(0, slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      for (int64_t r = s * kSliceRows; r < std::min(rows, (s + 1) * kSliceRows); ++r) run(r, base + s * width);
  });
  if (!sums.defined()) return;
  for (int64_t s = 0; s < slices; ++s) kernel::rows().fp.add(base + s * width, width, sums.data_ptr<float>());
}

// ---- embedding

struct EmbedStep final : Step {
  at::Tensor grad;
  int64_t first_row = 0;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor dx = grad_of(grads, 0), ids = saved[0];
    const int64_t H = dx.size(1);
    for (int64_t t = 0; t < dx.size(0); ++t) {
      const int64_t row = ids.data_ptr<int64_t>()[t] - first_row;
      if (row < 0 || row >= grad.size(0)) continue;
      by_dtype(dx, [&]<class T>(T) { row_table<T>().add_columns(pointer<T>(dx) + t * H, H, grad.data_ptr<float>() + row * H); });
    }
    return {at::Tensor()};
  }
};

// ---- rows

// move(to, from, bytes) for each listed row: `to` and `from` are row i of the short tensor and row rows[i] of the long one.
void for_selected(const at::Tensor& rows, const at::Tensor& selected, const at::Tensor& whole, const std::function<void(char*, char*, size_t)>& move) {
  const size_t bytes = static_cast<size_t>(whole.size(1)) * whole.element_size();
  char *from = static_cast<char*>(selected.data_ptr()), *to = static_cast<char*>(whole.data_ptr());
  const int64_t* row = rows.data_ptr<int64_t>();
  for_rows(rows.numel(), whole.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) move(from + static_cast<size_t>(i) * bytes, to + static_cast<size_t>(row[i]) * bytes, bytes);
  });
}

struct SelectStep final : Step {
  int64_t num_rows = 0;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d = grad_of(grads, 0);
    at::Tensor dx = at::zeros({num_rows, d.size(1)}, d.options());
    for_selected(saved[0], d, dx, [](char* selected, char* whole, size_t bytes) { std::memcpy(whole, selected, bytes); });
    return {dx};
  }
};

// ---- norm

struct NormStep final : Step {
  at::Tensor grad;
  bool has_delta = false;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d_sum = grad_of(grads, 0), d_normed = grad_of(grads, 1);
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const int64_t T = x.size(0), H = x.size(1);
    if (!d_normed.defined()) return has_delta ? variable_list{d_sum, d_sum} : variable_list{d_sum};
    at::Tensor dx = at::empty_like(x);
    sum_rows(T, H, grad, [&](int64_t r, float* partial) {
      by_dtype(x, [&]<class E>(E) {
        const E* residual = d_sum.defined() ? pointer<E>(d_sum) + r * H : nullptr;
        row_table<E>().rms_norm_backward(pointer<E>(d_normed) + r * H, pointer<E>(x) + r * H, pointer<E>(weight),
                                         rstd.data_ptr<float>()[r], residual, H, pointer<E>(dx) + r * H, partial);
      });
    });
    return has_delta ? variable_list{dx, dx} : variable_list{dx};
  }
};

// ---- norm of heads

// run(head, norm) for the query and key heads of a row: `norm` 0 is the queries', 1 the keys'.
template <class Run>
void for_normed_heads(const AttentionShape& shape, const Run& run) {
  for (int64_t h = 0; h < shape.num_heads + shape.num_kv_heads; ++h) run(h, h < shape.num_heads ? 0 : 1);
}

struct HeadNormStep final : Step {
  at::Tensor grad;
  AttentionShape shape{};
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d = grad_of(grads, 0);
    const at::Tensor &qkv = saved[0], &norms = saved[1], &rstd = saved[2];
    const int64_t W = shape.width(), D = shape.head_dim, heads = rstd.size(1);
    at::Tensor dx = at::empty_like(qkv);
    sum_rows(qkv.size(0), 2 * D, grad, [&](int64_t r, float* partial) {
      by_dtype(qkv, [&]<class E>(E) {
        const E *dy = pointer<E>(d) + r * W, *x = pointer<E>(qkv) + r * W;
        E* out = pointer<E>(dx) + r * W;
        for_normed_heads(shape, [&](int64_t h, int64_t n) {
          const float r_std = rstd.data_ptr<float>()[r * heads + h];
          row_table<E>().rms_norm_backward(dy + h * D, x + h * D, pointer<E>(norms) + n * D, r_std, nullptr, D, out + h * D,
                                           partial + n * D);
        });
        std::copy(dy + heads * D, dy + W, out + heads * D);
      });
    });
    return {dx};
  }
};

// ---- linear

struct LinearStep final : Step {
  const Gemm* gemm = nullptr;
  Parameter weight;
  Again x_again;
  void release_variables() override {
    saved.clear();
    x_again = nullptr;
  }
  variable_list apply(variable_list&& grads) override {
    const at::Tensor dy = grad_of(grads, 0);
    add_weight_grad(*gemm, weight, 0, dy, x_again ? x_again() : saved[0]);
    at::Tensor dx = at::empty({dy.size(0), weight.value.size(1)}, dy.options());
    gemm->input_grad(dx, dy, weight.value);
    return {dx};
  }
};

// ---- rope

at::Tensor rotate(const at::Tensor& qkv, const at::Tensor& bias, const at::Tensor& cos_sin, const at::Tensor& positions,
                  const AttentionShape& shape, float direction) {
  at::Tensor out = at::empty_like(qkv);
  const int64_t W = shape.width(), D = shape.head_dim;
  for_rows(qkv.size(0), W, [&](int64_t begin, int64_t end) {
    by_dtype(qkv, [&]<class T>(T) {
      const T *x = pointer<T>(qkv), *b = pointer<T>(bias);
      const float* angles = cos_sin.data_ptr<float>();
      const int64_t* position = positions.data_ptr<int64_t>();
      T* y = pointer<T>(out);
      for (int64_t t = begin; t < end; ++t)
        row_table<T>().rope(x + t * W, b, angles + position[t] * D, shape.num_heads + 2 * shape.num_kv_heads,
                            shape.num_heads + shape.num_kv_heads, D, direction, y + t * W);
    });
  });
  return out;
}

struct RopeStep final : Step {
  at::Tensor bias_grad;
  AttentionShape shape{};
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d = rotate(grad_of(grads, 0), at::Tensor(), saved[0], saved[1], shape, -1.0f);
    if (bias_grad.defined())
      sum_rows(d.size(0), shape.width(), bias_grad, [&](int64_t r, float* partial) {
        by_dtype(d, [&]<class T>(T) { row_table<T>().add_columns(pointer<T>(d) + r * shape.width(), shape.width(), partial); });
      });
    return {d};
  }
};

struct AttentionStep final : Step {
  Trees trees;
  AttentionShape shape{};
  variable_list apply(variable_list&& grads) override {
    at::Tensor d_qkv = at::empty_like(saved[0]);
    const AttentionOutput out{saved[1], saved[2], grad_of(grads, 0)};
    packed_attention_backward(all_rows_of(saved[0], shape), out, trees, shape, all_rows_of(d_qkv, shape));
    return {d_qkv};
  }
};

struct SwigluStep final : Step {
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d = grad_of(grads, 0), &gate_up = saved[0];
    at::Tensor d_gate_up = at::empty_like(gate_up);
    const int64_t F = d.size(1);
    for_rows(d.size(0), F, [&](int64_t begin, int64_t end) {
      by_dtype(d, [&]<class T>(T) {
        for (int64_t t = begin; t < end; ++t)
          row_table<T>().swiglu_backward(pointer<T>(gate_up) + 2 * t * F, pointer<T>(d) + t * F, F, pointer<T>(d_gate_up) + 2 * t * F);
      });
    });
    return {d_gate_up};
  }
};

// ---- recompute

struct RecomputeStep final : Step {
  LayerFunction layer;
  variable_list apply(variable_list&& grads) override {
    at::AutoGradMode on(true);
    variable_list inputs;
    for (const at::Tensor& t : saved) inputs.push_back(t.detach().requires_grad_(true));
    auto [a, b] = layer(inputs[0], inputs.size() > 1 ? inputs[1] : at::Tensor());
    variable_list outputs, output_grads;
    for (size_t i = 0; i < 2; ++i) {
      if (!grads[i].defined()) continue;
      outputs.push_back(i == 0 ? a : b);
      output_grads.push_back(grads[i]);
    }
    return torch::autograd::grad(outputs, inputs, output_grads, false, false, true);
  }
};

}  // namespace

void add_weight_grad(const Gemm& gemm, const Parameter& w, int64_t first_row, const at::Tensor& dy, const at::Tensor& x) {
  if (w.grad.defined()) {
    at::Tensor grad = w.grad.narrow(0, first_row, dy.size(1));
    gemm.weight_grad(grad, dy, x);
  }
  for (const Adapter& adapter : w.adapters) {
    const int64_t begin = std::max(adapter.first_row, first_row);
    const int64_t rows = std::min(adapter.first_row + adapter.b_Nr.size(0), first_row + dy.size(1)) - begin;
    if (rows <= 0) continue;
    const at::Tensor d = dy.narrow(1, begin - first_row, rows).contiguous();
    const auto b_of = [&](const at::Tensor& b) { return b.narrow(0, begin - adapter.first_row, rows); };
    at::Tensor low = at::empty({d.size(0), adapter.a_rK.size(0)}, d.options()), b_grad = b_of(adapter.b_grad), a_grad = adapter.a_grad;
    gemm.input_grad(low, d, b_of(adapter.b_Nr).to(d.scalar_type()));
    gemm.weight_grad(a_grad, low.mul_(adapter.scale), x);
    gemm.forward(low, x, adapter.a_rK.to(x.scalar_type()));
    gemm.weight_grad(b_grad, d, low.mul_(adapter.scale));
  }
}

at::Tensor embed(const Parameter& table, const at::Tensor& ids, int64_t first_row) {
  const int64_t T = ids.size(0), H = table.value.size(1), rows = table.value.size(0);
  at::Tensor x = at::empty({T, H}, table.value.options());
  const auto element = static_cast<int64_t>(table.value.element_size());
  const int64_t* id = ids.data_ptr<int64_t>();
  const char* from = pointer<char>(table.value);
  char* to = pointer<char>(x);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = id[t] - first_row;
    char* out = to + t * H * element;
    if (row < 0 || row >= rows) std::memset(out, 0, static_cast<size_t>(H * element));
    else std::memcpy(out, from + row * H * element, static_cast<size_t>(H * element));
  }
  if (at::GradMode::is_enabled() && table.grad.defined()) {
    // The graph needs one leaf to start from; the ids themselves have no gradient.
    const at::Tensor leaf = at::zeros({1}, at::kFloat).requires_grad_(true);
    auto step = make_step<EmbedStep>({leaf});
    step->saved = {ids};
    step->grad = table.grad;
    step->first_row = first_row;
    attach(x, step);
  }
  return x;
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const Parameter& weight, double eps) {
  const int64_t T = x.size(0), H = x.size(1);
  const bool record = recording({x, delta});
  at::Tensor total = delta.defined() ? at::empty({T, H}, x.options()) : x.detach(), normed = at::empty({T, H}, x.options());
  at::Tensor rstd = at::empty({T}, x.options().dtype(at::kFloat));
  for_rows(T, H, [&](int64_t begin, int64_t end) {
    by_dtype(x, [&]<class E>(E) {
      const E *from = pointer<E>(x), *d = pointer<E>(delta), *w = pointer<E>(weight.value);
      E *sum = pointer<E>(total), *y = pointer<E>(normed);
      float* r = rstd.data_ptr<float>();
      for (int64_t t = begin; t < end; ++t)
        row_table<E>().add_rms_norm(from + t * H, d ? d + t * H : nullptr, w, static_cast<float>(eps), H, sum + t * H, y + t * H, r + t);
    });
  });
  if (record) {
    auto step = make_step<NormStep>({x, delta});
    step->has_delta = delta.defined();
    step->saved = {total.detach(), weight.value, rstd};
    step->grad = weight.grad;
    attach(total, step);
    attach(normed, step);
  }
  return {total, normed};
}

at::Tensor rms_norm(const at::Tensor& x, const Parameter& weight, double eps) {
  at::NoGradGuard no_grad;
  return add_rms_norm(x, {}, weight, eps).second;
}

namespace {

// The sum is rounded once: a small change of a product that was rounded before would be lost again.
void forward_by_adapters(const Gemm& gemm, at::Tensor& y, const at::Tensor& x, const Parameter& w) {
  constexpr int64_t kRows = 16 * kParityRows;  // of fp32 at a time
  std::vector<std::pair<at::Tensor, at::Tensor>> factors;
  for (const Adapter& a : w.adapters) factors.emplace_back(a.a_rK.to(x.scalar_type()), a.b_Nr.to(x.scalar_type()));
  for (int64_t begin = 0; begin < x.size(0); begin += kRows) {
    const at::Tensor some = x.narrow(0, begin, std::min(kRows, x.size(0) - begin));
    at::Tensor sum = at::empty({some.size(0), y.size(1)}, at::kFloat);
    gemm.forward_float(sum, some, w.base);
    for (size_t i = 0; i < factors.size(); ++i) {
      const auto& [a, b] = factors[i];
      at::Tensor low = at::empty({some.size(0), a.size(0)}, x.options()), part = at::empty({some.size(0), b.size(0)}, at::kFloat);
      gemm.forward(low, some, a);
      gemm.forward_float(part, low, b);
      sum.narrow(1, w.adapters[i].first_row, b.size(0)).add_(part, w.adapters[i].scale);
    }
    y.narrow(0, begin, some.size(0)).copy_(sum);
  }
}

}  // namespace

at::Tensor linear(const Gemm& gemm, const at::Tensor& x, const Parameter& weight, const Again& x_again) {
  if (weight.packed.serves(x.size(0)) && !recording({x})) return packed_product(x, weight.packed);
  at::Tensor y = at::empty({x.size(0), weight.value.size(0)}, x.options());
  if (weight.base.defined()) forward_by_adapters(gemm, y, x.detach(), weight);
  else gemm.forward(y, x.detach(), weight.value);
  if (recording({x})) {
    auto step = make_step<LinearStep>({x});
    step->gemm = &gemm;
    if (x_again) step->x_again = x_again;
    else step->saved = {x.detach()};
    step->weight = weight;
    attach(y, step);
  }
  return y;
}

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows) {
  at::Tensor out = at::empty({rows.numel(), x.size(1)}, x.options());
  for_selected(rows, out, x, [](char* selected, char* whole, size_t bytes) { std::memcpy(selected, whole, bytes); });
  if (recording({x})) {
    auto step = make_step<SelectStep>({x});
    step->saved = {rows};
    step->num_rows = x.size(0);
    attach(out, step);
  }
  return out;
}

at::Tensor head_norm(const at::Tensor& qkv, const Parameter& norms, double eps, const AttentionShape& shape) {
  const int64_t T = qkv.size(0), W = shape.width(), D = shape.head_dim, heads = shape.num_heads + shape.num_kv_heads;
  at::Tensor out = at::empty_like(qkv), rstd = at::empty({T, heads}, qkv.options().dtype(at::kFloat));
  for_rows(T, W, [&](int64_t begin, int64_t end) {
    by_dtype(qkv, [&]<class E>(E) {
      const E *from = pointer<E>(qkv), *weights = pointer<E>(norms.value);
      E* to = pointer<E>(out);
      float* r = rstd.data_ptr<float>();
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
  });
  if (recording({qkv})) {
    auto step = make_step<HeadNormStep>({qkv});
    step->saved = {qkv.detach(), norms.value, rstd};
    step->grad = norms.grad;
    step->shape = shape;
    attach(out, step);
  }
  return out;
}

at::Tensor rope(const at::Tensor& qkv, const Parameter& bias, const at::Tensor& cos_sin, const at::Tensor& positions, const AttentionShape& shape) {
  at::Tensor out = rotate(qkv, bias.value, cos_sin, positions, shape, 1.0f);
  if (recording({qkv})) {
    auto step = make_step<RopeStep>({qkv});
    step->saved = {cos_sin, positions};
    step->bias_grad = bias.grad;
    step->shape = shape;
    attach(out, step);
  }
  return out;
}

at::Tensor attention(const at::Tensor& qkv, const Trees& trees, const AttentionShape& shape, bool parity) {
  const bool record = recording({qkv});
  const AttentionRows rows = all_rows_of(qkv.detach(), shape);
  at::Tensor lse;
  at::Tensor o = parity ? packed_attention_by_row(rows, trees, shape) : packed_attention(rows, trees, shape, record ? &lse : nullptr);
  if (record) {
    auto step = make_step<AttentionStep>({qkv});
    step->saved = {qkv.detach(), o.detach(), lse};
    step->trees = trees;
    step->shape = shape;
    attach(o, step);
  }
  return o;
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t T = gate_up.size(0), F = gate_up.size(1) / 2;
  at::Tensor out = at::empty({T, F}, gate_up.options());
  for_rows(T, F, [&](int64_t begin, int64_t end) {
    by_dtype(gate_up, [&]<class E>(E) {
      const E* from = pointer<E>(gate_up);
      E* to = pointer<E>(out);
      for (int64_t t = begin; t < end; ++t) row_table<E>().swiglu(from + 2 * t * F, F, to + t * F);
    });
  });
  if (recording({gate_up})) {
    auto step = make_step<SwigluStep>({gate_up});
    step->saved = {gate_up.detach()};
    attach(out, step);
  }
  return out;
}

std::pair<at::Tensor, at::Tensor> recompute(LayerFunction layer, const at::Tensor& a, const at::Tensor& b) {
  if (!recording({a, b})) return layer(a, b);
  std::pair<at::Tensor, at::Tensor> out;
  {
    at::NoGradGuard off;
    out = layer(a.detach(), b.defined() ? b.detach() : b);
  }
  auto step = make_step<RecomputeStep>({a, b});
  step->saved = {a.detach()};
  if (b.defined()) step->saved.push_back(b.detach());
  step->layer = std::move(layer);
  attach(out.first, step);
  attach(out.second, step);
  return out;
}

}  // namespace tandem::model::kernel
