// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/expert/experts.h"

#include <memory>

#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

// The weights multiply the activations, so that their gradient needs no output of an expert.
struct ExpertsStep final : Step {
  const Kernels* kernels = nullptr;
  std::shared_ptr<const Dispatch> dispatch;
  Parameter gate_up, down;

  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, Parameter& of) const {
    const kernel::ProductKernels& product = kernels->product();
    if (of.grad.defined()) product.grouped_weight_grad(kernels->numerics(), of.grad, dy, x, dispatch->rows());
    return product.grouped_input_grad(kernels->numerics(), dy, of.value, dispatch->rows());
  }
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d_out = grad_of(grads, 0);
    const at::Tensor &x = saved[0], &weights = saved[1], &gate_up_S = saved[2];
    const kernel::RowKernels& row = kernels->row();
    const at::Tensor active = row.swiglu(gate_up_S);
    const at::Tensor d_active = backward(dispatch->gather(d_out), row.scale(active, weights), down);
    const at::Tensor d_weights = row.dot(d_active, active);
    const at::Tensor d_gate_up = row.swiglu_backward(gate_up_S, row.scale(d_active, weights));
    const at::Tensor dx = backward(d_gate_up, dispatch->gather(x), gate_up);
    return {dispatch->combine(dx), dispatch->to_tokens(d_weights)};
  }
};

}  // namespace

at::Tensor experts(const Kernels& k, const at::Tensor& x, const Routing& routing, const ExpertWeights& experts) {
  const auto dispatch = std::make_shared<const Dispatch>(k, routing.experts_Tk, experts.place);
  const auto product = [&](const at::Tensor& rows, const Parameter& of) {
    return k.product().grouped_forward(k.numerics(), rows, of.value, dispatch->rows());
  };
  const at::Tensor gate_up_S = product(dispatch->gather(plain(x)), experts.gate_up);
  const at::Tensor weights = dispatch->to_rows(plain(routing.weights_Tk));
  at::Tensor out = dispatch->combine(product(k.row().scale(k.row().swiglu(gate_up_S), weights), experts.down));
  if (recording({x, routing.weights_Tk})) {
    auto step = make_step<ExpertsStep>({x, routing.weights_Tk});
    step->kernels = &k;
    step->dispatch = dispatch;
    step->gate_up = experts.gate_up;
    step->down = experts.down;
    step->saved = {x.detach(), weights, gate_up_S};
    attach(out, step);
  }
  return out;
}

}  // namespace tandem::model::op
