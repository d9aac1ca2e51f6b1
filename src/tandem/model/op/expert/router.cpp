// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/expert/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

struct RouteStep final : Step {
  const Kernels* kernels = nullptr;
  at::Tensor grad;
  kernel::RouterShape shape{};
  RouterLoss loss;
  // saved: x, weight, scores, experts, and logits where there are losses
  variable_list apply(variable_list&& grads) override {
    const at::Tensor &x = saved[0], &weight = saved[1];
    kernel::RouterLossSums sums;
    if (loss.terms.any()) sums = {*loss.z_sum, *loss.balance_sum};
    const kernel::RouterGrad in{grad_of(grads, 0), saved[2], saved[3], loss.terms.any() ? saved[4] : at::Tensor()};
    const at::Tensor d_logits = kernels->expert().route_backward(in, shape, loss.terms, sums).to(x.scalar_type());
    if (loss.terms.any()) *loss.z_sum = sums.z, *loss.balance_sum = sums.balance;
    at::Tensor dx = at::empty_like(x);
    if (grad.defined()) kernels->weight_grad(grad, d_logits, x);
    kernels->input_grad(dx, d_logits, weight);
    return {dx};
  }
};

}  // namespace

Routing route(const Kernels& k, const at::Tensor& x, const Router& router, const at::Tensor& chosen) {
  at::Tensor logits = at::empty({x.size(0), router.shape.num_experts}, x.options().dtype(at::kFloat).requires_grad(false));
  k.forward_float(logits, plain(x), router.weight_EH.value);
  kernel::Routed routed = k.expert().route(logits, router.bias_E, router.shape, chosen);
  if (recording({x})) {
    auto step = make_step<RouteStep>({x});
    step->kernels = &k;
    step->grad = router.weight_EH.grad;
    step->shape = router.shape;
    step->loss = router.loss;
    step->saved = {x.detach(), router.weight_EH.value, routed.scores_TE, routed.experts_Tk};
    if (router.loss.terms.any()) step->saved.push_back(logits);
    attach(routed.weights_Tk, step);
  }
  return {routed.experts_Tk, routed.weights_Tk};
}

}  // namespace tandem::model::op
