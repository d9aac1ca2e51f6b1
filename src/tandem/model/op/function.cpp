// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/function.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "tandem/model/op/product.h"
#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

// Each keeps the kernels that its forward pass ran by.
struct KernelStep : Step {
  const Kernels* kernels = nullptr;
};

template <class S>
auto make_kernel_step(const Kernels& k, std::initializer_list<at::Tensor> inputs) {
  auto step = make_step<S>(inputs);
  step->kernels = &k;
  return step;
}

struct EmbedStep final : KernelStep {
  at::Tensor grad;
  int64_t first_row = 0;
  variable_list apply(variable_list&& grads) override {
    kernels->row().embed_backward(grad, grad_of(grads, 0), saved[0], first_row);
    return {at::Tensor()};
  }
};

struct SelectStep final : KernelStep {
  int64_t num_rows = 0;
  variable_list apply(variable_list&& grads) override { return {kernels->row().scatter(grad_of(grads, 0), saved[0], num_rows)}; }
};

struct NormStep final : KernelStep {
  at::Tensor grad;
  bool has_delta = false;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d_sum = grad_of(grads, 0), d_normed = grad_of(grads, 1);
    const at::Tensor dx =
        d_normed.defined() ? kernels->row().rms_norm_backward({d_normed, d_sum, saved[0], saved[1], saved[2]}, grad) : d_sum;
    return has_delta ? variable_list{dx, dx} : variable_list{dx};
  }
};

struct HeadNormStep final : KernelStep {
  at::Tensor grad;
  AttentionShape shape{};
  variable_list apply(variable_list&& grads) override {
    return {kernels->row().head_norm_backward({grad_of(grads, 0), saved[0], saved[1], saved[2]}, shape, grad)};
  }
};

struct LinearStep final : KernelStep {
  Parameter weight;
  Again x_again;
  void release_variables() override {
    saved.clear();
    x_again = nullptr;
  }
  variable_list apply(variable_list&& grads) override {
    const at::Tensor dy = grad_of(grads, 0);
    add_weight_grad(*kernels, weight, 0, dy, x_again ? x_again() : saved[0]);
    at::Tensor dx = at::empty({dy.size(0), weight.value.size(1)}, dy.options());
    input_grad(*kernels, dx, dy, weight);
    return {dx};
  }
};

struct RopeStep final : KernelStep {
  at::Tensor bias_grad;
  AttentionShape shape{};
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d = kernels->row().rope(grad_of(grads, 0), {}, {saved[0], saved[1], shape}, false);
    if (bias_grad.defined()) kernels->row().add_rows(bias_grad, d);
    return {d};
  }
};

struct AttentionStep final : KernelStep {
  std::shared_ptr<const kernel::PackedPlan> plan;
  AttentionShape shape{};
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d_qkv = at::empty_like(saved[0]);
    kernels->attention().packed_backward(columns_of(saved[0], shape), {saved[1], saved[2], grad_of(grads, 0)}, *plan, shape,
                                         columns_of(d_qkv, shape));
    return {d_qkv};
  }
};

struct SwigluStep final : KernelStep {
  variable_list apply(variable_list&& grads) override { return {kernels->row().swiglu_backward(saved[0], grad_of(grads, 0))}; }
};

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

at::Tensor embed(const Kernels& k, const Parameter& table, const at::Tensor& ids, int64_t first_row) {
  at::Tensor x = k.row().embed(table.value, ids, first_row);
  if (at::GradMode::is_enabled() && table.grad.defined()) {
    // The graph needs one leaf to start from; the ids themselves have no gradient.
    const at::Tensor leaf = at::zeros({1}, x.options().dtype(at::kFloat)).requires_grad_(true);
    auto step = make_kernel_step<EmbedStep>(k, {leaf});
    step->saved = {ids};
    step->grad = table.grad;
    step->first_row = first_row;
    attach(x, step);
  }
  return x;
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const Kernels& k, const at::Tensor& x, const at::Tensor& delta, const Parameter& weight,
                                               double eps) {
  auto [sum, normed, rstd] = k.row().add_rms_norm(plain(x), plain(delta), weight.value, eps);
  if (recording({x, delta})) {
    auto step = make_kernel_step<NormStep>(k, {x, delta});
    step->has_delta = delta.defined();
    step->saved = {sum.detach(), weight.value, rstd};
    step->grad = weight.grad;
    attach(sum, step);
    attach(normed, step);
  }
  return {sum, normed};
}

at::Tensor rms_norm(const Kernels& k, const at::Tensor& x, const Parameter& weight, double eps) {
  at::NoGradGuard no_grad;
  return add_rms_norm(k, x, {}, weight, eps).second;
}

at::Tensor linear(const Kernels& k, const at::Tensor& x, const Parameter& weight, const Again& x_again) {
  if (weight.packed.serves(x.size(0)) && !recording({x})) return packed_product(k, x, weight);
  at::Tensor y = at::empty({x.size(0), weight.value.size(0)}, x.options());
  forward(k, y, plain(x), weight);
  if (recording({x})) {
    auto step = make_kernel_step<LinearStep>(k, {x});
    if (x_again) step->x_again = x_again;
    else step->saved = {x.detach()};
    step->weight = weight;
    attach(y, step);
  }
  return y;
}

at::Tensor select_rows(const Kernels& k, const at::Tensor& x, const at::Tensor& rows) {
  at::Tensor out = k.row().gather(plain(x), rows);
  if (recording({x})) {
    auto step = make_kernel_step<SelectStep>(k, {x});
    step->saved = {rows};
    step->num_rows = x.size(0);
    attach(out, step);
  }
  return out;
}

at::Tensor head_norm(const Kernels& k, const at::Tensor& qkv, const Parameter& norms, double eps, const AttentionShape& shape) {
  auto [out, rstd] = k.row().head_norm(plain(qkv), norms.value, eps, shape);
  if (recording({qkv})) {
    auto step = make_kernel_step<HeadNormStep>(k, {qkv});
    step->saved = {qkv.detach(), norms.value, rstd};
    step->grad = norms.grad;
    step->shape = shape;
    attach(out, step);
  }
  return out;
}

at::Tensor rope(const Kernels& k, const at::Tensor& qkv, const Parameter& bias, const kernel::Rotation& rotation) {
  at::Tensor out = k.row().rope(plain(qkv), bias.value, rotation, true);
  if (recording({qkv})) {
    auto step = make_kernel_step<RopeStep>(k, {qkv});
    step->saved = {rotation.cos_sin_PD, rotation.positions_T};
    step->bias_grad = bias.grad;
    step->shape = rotation.shape;
    attach(out, step);
  }
  return out;
}

at::Tensor attention(const Kernels& k, const at::Tensor& qkv, std::shared_ptr<const kernel::PackedPlan> plan, const AttentionShape& shape) {
  const bool record = recording({qkv});
  const kernel::AttentionRows rows = columns_of(plain(qkv), shape);
  at::Tensor lse;
  at::Tensor o =
      k.parity() ? k.attention().packed_by_row(rows, *plan, shape) : k.attention().packed(rows, *plan, shape, record ? &lse : nullptr);
  if (record) {
    auto step = make_kernel_step<AttentionStep>(k, {qkv});
    step->saved = {qkv.detach(), o.detach(), lse};
    step->plan = std::move(plan);
    step->shape = shape;
    attach(o, step);
  }
  return o;
}

at::Tensor swiglu(const Kernels& k, const at::Tensor& gate_up) {
  at::Tensor out = k.row().swiglu(plain(gate_up));
  if (recording({gate_up})) {
    auto step = make_kernel_step<SwigluStep>(k, {gate_up});
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

}  // namespace tandem::model::op
