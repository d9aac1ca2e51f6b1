// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/expert/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "tandem/model/op/step.h"

namespace tandem::model::op {
Routing route(const Kernels& k, const at::Tensor& x, const Router& router, const at::Tensor& chosen) {
  at::Tensor logits = at::empty({x.size(0), router.shape.num_experts}, x.options().dtype(at::kFloat).requires_grad(false));
  k.forward_float(logits, plain(x), router.weight_EH.value);
  kernel::Routed routed = k.expert().route(logits, router.bias_E, router.shape, chosen);
  if (recording({x})) {
    const kernel::RouterGrad kept{{}, routed.scores_TE, routed.experts_Tk, router.loss.terms.any() ? logits : at::Tensor()};
    const auto backward = [&k, x = x.detach(), weight = router.weight_EH.value, grad = router.weight_EH.grad, shape = router.shape,
                           loss = router.loss, in = kept](const Gradients& d) mutable {
      in.d_weights_Tk = d[0];
      kernel::RouterLossSums sums;
      if (loss.terms.any()) sums = {*loss.z_sum, *loss.balance_sum};
      const at::Tensor d_logits = k.expert().route_backward(in, shape, loss.terms, sums).to(x.scalar_type());
      if (loss.terms.any()) *loss.z_sum = sums.z, *loss.balance_sum = sums.balance;
      at::Tensor dx = at::empty_like(x);
      if (grad.defined()) k.weight_grad(grad, d_logits, x);
      k.input_grad(dx, d_logits, weight);
      return Gradients{dx};
    };
    record({x}, {routed.weights_Tk}, backward);
  }
  return {routed.experts_Tk, routed.weights_Tk};
}

}  // namespace tandem::model::op
