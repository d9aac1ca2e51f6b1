// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the nodes of the graph share. Included by the .cpp files of this folder and the folders in it alone.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

namespace tandem::model::op {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// A node with its saved tensors, which are dropped as soon as the backward has used them.
struct Step : Node {
  std::vector<at::Tensor> saved;
  void release_variables() override { saved.clear(); }
  static at::Tensor grad_of(variable_list& grads, size_t i) { return grads[i].defined() ? grads[i].contiguous() : at::Tensor(); }
};

/// How libtorch keeps a node: 2.11 in a shared_ptr, 2.13 in an intrusive_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);
template <class S>
auto make_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) return std::make_shared<S>();
  else return c10::make_intrusive<S>();
}

inline bool recording(std::initializer_list<at::Tensor> inputs) {
  return at::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

/// The tensor for a kernel, which records nothing: outside of the graph, or `t` itself where it is in none, so attach nothing to it.
inline at::Tensor plain(const at::Tensor& t) { return t.defined() && t.requires_grad() ? t.detach() : t; }

template <class S>
auto make_step(std::initializer_list<at::Tensor> inputs) {
  auto step = make_node<S>();
  torch::autograd::edge_list edges;
  for (const at::Tensor& t : inputs)
    if (t.defined()) edges.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
  step->set_next_edges(std::move(edges));
  return step;
}

inline void attach(at::Tensor& out, const NodePtr& step) { torch::autograd::set_history(out, step); }

}  // namespace tandem::model::op
