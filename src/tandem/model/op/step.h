// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the nodes of the graph share. Included by the .cpp files of this folder and the folders in it alone.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace tandem::model::op {

/// Of the outputs of a step, and of its inputs; undefined where there is none.
using Gradients = torch::autograd::variable_list;
using Backward = std::function<Gradients(const Gradients&)>;

/// A node of the graph. Its function is dropped, with the tensors it keeps, as soon as the backward has used it.
struct Step final : torch::autograd::Node {
  Backward backward;
  Gradients apply(Gradients&& grads) override {
    for (at::Tensor& d : grads)
      if (d.defined()) d = d.contiguous();
    return backward(grads);
  }
  void release_variables() override { backward = nullptr; }
};

/// How libtorch keeps a node: 2.11 in a shared_ptr, 2.13 in an intrusive_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);
template <class S>
auto make_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) return std::make_shared<S>();
  else return c10::make_intrusive<S>();
}

inline bool recording(std::initializer_list<at::Tensor> inputs) {
  return at::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

/// The tensor for a kernel, which records nothing: outside of the graph, or `t` itself where it is in none, so it is no output to record.
inline at::Tensor plain(const at::Tensor& t) { return t.defined() && t.requires_grad() ? t.detach() : t; }

/// Puts a step into the graph. `backward` gives a gradient for each of the inputs that are defined; what it keeps of the outputs it keeps
/// detached.
inline void record(std::initializer_list<at::Tensor> inputs, std::initializer_list<at::Tensor> outputs, Backward backward) {
  auto step = make_node<Step>();
  torch::autograd::edge_list edges;
  for (const at::Tensor& t : inputs)
    if (t.defined()) edges.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
  step->set_next_edges(std::move(edges));
  step->backward = std::move(backward);
  const NodePtr node = step;
  for (const at::Tensor& out : outputs) torch::autograd::set_history(out, node);
}

}  // namespace tandem::model::op
