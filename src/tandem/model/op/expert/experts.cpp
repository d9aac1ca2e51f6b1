// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/expert/experts.h"

#include <memory>

#include "tandem/model/op/step.h"

namespace tandem::model::op {
// The weights multiply the activations, so that their gradient needs no output of an expert.
at::Tensor experts(const Kernels& k, const at::Tensor& x, const Routing& routing, const ExpertWeights& experts) {
  const auto dispatch = std::make_shared<const Dispatch>(k, routing.experts_Tk, experts.place);
  const auto product = [&](const at::Tensor& rows, const Parameter& of) {
    return k.product().grouped_forward(k.numerics(), rows, of.value, dispatch->rows());
  };
  const at::Tensor gate_up_S = product(dispatch->gather(plain(x)), experts.gate_up);
  const at::Tensor weights = dispatch->to_rows(plain(routing.weights_Tk));
  at::Tensor out = dispatch->combine(product(k.row().scale(k.row().swiglu(gate_up_S), weights), experts.down));
  if (recording({x, routing.weights_Tk})) {
    const auto backward = [&k, dispatch, gate_up = experts.gate_up, down = experts.down, x = x.detach(), weights,
                           gate_up_S](const Gradients& d) mutable {
      const kernel::RowKernels& row = k.row();
      const auto back_through = [&](Parameter& of, const at::Tensor& dy, const at::Tensor& rows) {
        if (of.grad.defined()) k.product().grouped_weight_grad(k.numerics(), of.grad, dy, rows, dispatch->rows());
        return k.product().grouped_input_grad(k.numerics(), dy, of.value, dispatch->rows());
      };
      const at::Tensor active = row.swiglu(gate_up_S);
      const at::Tensor d_active = back_through(down, dispatch->gather(d[0]), row.scale(active, weights));
      const at::Tensor d_weights = row.dot(d_active, active);
      const at::Tensor d_gate_up = row.swiglu_backward(gate_up_S, row.scale(d_active, weights));
      const at::Tensor dx = back_through(gate_up, d_gate_up, dispatch->gather(x));
      return Gradients{dispatch->combine(dx), dispatch->to_tokens(d_weights)};
    };
    record({x, routing.weights_Tk}, {out}, backward);
  }
  return out;
}

}  // namespace tandem::model::op
