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
at::Tensor embed(const Kernels& k, const Parameter& table, const at::Tensor& ids, int64_t first_row) {
  at::Tensor x = k.row().embed(table.value, ids, first_row);
  if (at::GradMode::is_enabled() && table.grad.defined()) {
    // The graph needs one leaf to start from; the ids themselves have no gradient.
    const at::Tensor leaf = at::zeros({1}, x.options().dtype(at::kFloat)).requires_grad_(true);
    record({leaf}, {x}, [&k, ids, first_row, grad = table.grad](const Gradients& d) mutable {
      k.row().embed_backward(grad, d[0], ids, first_row);
      return Gradients{at::Tensor()};
    });
  }
  return x;
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const Kernels& k, const at::Tensor& x, const at::Tensor& delta, const Parameter& weight,
                                               double eps) {
  auto [sum, normed, rstd] = k.row().add_rms_norm(plain(x), plain(delta), weight.value, eps);
  if (recording({x, delta})) {
    const kernel::NormGrad kept{{}, {}, sum.detach(), weight.value, rstd};
    record({x, delta}, {sum, normed}, [&k, kept, has_delta = delta.defined(), grad = weight.grad](const Gradients& d) mutable {
      const at::Tensor &d_sum = d[0], &d_normed = d[1];
      const at::Tensor dx =
          d_normed.defined() ? k.row().rms_norm_backward({d_normed, d_sum, kept.x_TH, kept.weight_H, kept.rstd_T}, grad) : d_sum;
      return has_delta ? Gradients{dx, dx} : Gradients{dx};
    });
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
    const Again input = x_again ? x_again : [kept = x.detach()] { return kept; };
    record({x}, {y}, [&k, weight, input](const Gradients& d) {
      add_weight_grad(k, weight, 0, d[0], input());
      at::Tensor dx = at::empty({d[0].size(0), weight.value.size(1)}, d[0].options());
      input_grad(k, dx, d[0], weight);
      return Gradients{dx};
    });
  }
  return y;
}

at::Tensor select_rows(const Kernels& k, const at::Tensor& x, const at::Tensor& rows) {
  at::Tensor out = k.row().gather(plain(x), rows);
  if (recording({x}))
    record({x}, {out}, [&k, rows, all = x.size(0)](const Gradients& d) { return Gradients{k.row().scatter(d[0], rows, all)}; });
  return out;
}

at::Tensor head_norm(const Kernels& k, const at::Tensor& qkv, const Parameter& norms, double eps, const AttentionShape& shape) {
  auto [out, rstd] = k.row().head_norm(plain(qkv), norms.value, eps, shape);
  if (recording({qkv})) {
    const kernel::HeadNormGrad kept{{}, qkv.detach(), norms.value, rstd};
    record({qkv}, {out}, [&k, kept, shape, grad = norms.grad](const Gradients& d) mutable {
      return Gradients{k.row().head_norm_backward({d[0], kept.qkv_TW, kept.norms_2D, kept.rstd_TN}, shape, grad)};
    });
  }
  return out;
}

at::Tensor rope(const Kernels& k, const at::Tensor& qkv, const Parameter& bias, const kernel::Rotation& rotation) {
  at::Tensor out = k.row().rope(plain(qkv), bias.value, rotation, true);
  if (recording({qkv}))
    record({qkv}, {out}, [&k, rotation, bias_grad = bias.grad](const Gradients& d) mutable {
      const at::Tensor back = k.row().rope(d[0], {}, rotation, false);
      if (bias_grad.defined()) k.row().add_rows(bias_grad, back);
      return Gradients{back};
    });
  return out;
}

at::Tensor attention(const Kernels& k, const at::Tensor& qkv, std::shared_ptr<const kernel::PackedPlan> plan, const AttentionShape& shape) {
  const bool records = recording({qkv});
  const kernel::AttentionRows rows = columns_of(plain(qkv), shape);
  at::Tensor lse;
  at::Tensor o =
      k.parity() ? k.attention().packed_by_row(rows, *plan, shape) : k.attention().packed(rows, *plan, shape, records ? &lse : nullptr);
  if (records)
    record({qkv}, {o}, [&k, in = qkv.detach(), out = o.detach(), lse, plan = std::move(plan), shape](const Gradients& d) {
      const at::Tensor d_qkv = at::empty_like(in);
      k.attention().packed_backward(columns_of(in, shape), {out, lse, d[0]}, *plan, shape, columns_of(d_qkv, shape));
      return Gradients{d_qkv};
    });
  return o;
}

at::Tensor swiglu(const Kernels& k, const at::Tensor& gate_up) {
  at::Tensor out = k.row().swiglu(plain(gate_up));
  if (recording({gate_up}))
    record({gate_up}, {out}, [&k, kept = gate_up.detach()](const Gradients& d) { return Gradients{k.row().swiglu_backward(kept, d[0])}; });
  return out;
}

std::pair<at::Tensor, at::Tensor> recompute(LayerFunction layer, const at::Tensor& a, const at::Tensor& b) {
  if (!recording({a, b})) return layer(a, b);
  const at::Tensor kept_a = a.detach(), kept_b = b.defined() ? b.detach() : b;
  std::pair<at::Tensor, at::Tensor> out;
  {
    at::NoGradGuard off;
    out = layer(kept_a, kept_b);
  }
  record({a, b}, {out.first, out.second}, [layer = std::move(layer), kept_a, kept_b](const Gradients& grads) {
    at::AutoGradMode on(true);
    Gradients inputs = {kept_a.detach().requires_grad_(true)};
    if (kept_b.defined()) inputs.push_back(kept_b.detach().requires_grad_(true));
    const auto [first, second] = layer(inputs[0], kept_b.defined() ? inputs[1] : kept_b);
    Gradients outputs, output_grads;
    for (size_t i = 0; i < 2; ++i) {
      if (!grads[i].defined()) continue;
      outputs.push_back(i == 0 ? first : second);
      output_grads.push_back(grads[i]);
    }
    return torch::autograd::grad(outputs, inputs, output_grads, false, false, true);
  });
  return out;
}

}  // namespace tandem::model::op
