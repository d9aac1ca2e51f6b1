// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/expert/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <memory>

#include "tandem/model/kernel/step.h"

namespace tandem::model::kernel {
namespace {

constexpr int64_t kFewRows = 32;  // per expert: then experts run side by side, each on one thread
// Up to here dot products with the weights as they lie are faster than a library that repacks them; with matrix units it catches up
// earlier.
template <class E>
constexpr int64_t kDotRows = sizeof(E) == 2 ? 8 : 24;
constexpr int64_t kColumns = 64;  // of one task

template <class E>
void scale_row(const E* in, int64_t n, float factor, E* out) {
  thread_local std::vector<float> buffer;
  buffer.resize(static_cast<size_t>(n));
  row_table<E>().to_float(in, n, buffer.data());
  for (float& x : buffer) x *= factor;
  row_table<E>().from_float(buffer.data(), n, out);
}

// Expert e's part of a parameter that holds them all.
at::Tensor part_of(const at::Tensor& all, int64_t expert, int64_t num_experts) {
  const int64_t rows = all.size(0) / num_experts;
  return all.narrow(0, expert * rows, rows);
}

// The products of the experts held here with their rows.
struct Products {
  const Gemm& gemm;
  const Dispatch& rows;
  int64_t num_experts;
  bool side_by_side;

  Products(const Gemm& g, const Dispatch& dispatch, int64_t count)
      : gemm(g), rows(dispatch), num_experts(count), side_by_side(!g.parity() && dispatch.num_rows() < kFewRows * count) {}

  // Experts with few rows are cut into tasks of some columns, so that threads share the reading of the weights evenly.
  template <class E>
  void dot_products(const at::Tensor& x, const at::Tensor& weights, at::Tensor& y) const {
    struct Task {
      int64_t expert, first, count, column;
    };
    std::vector<Task> tasks;
    const int64_t N = y.size(1), K = x.size(1);
    rows.for_experts(false, [&](int64_t e, int64_t first, int64_t count) {
      for (int64_t column = 0; column < N && count <= kDotRows<E>; column += kColumns) tasks.push_back({e, first, count, column});
      if (count > kDotRows<E>) tasks.push_back({e, first, count, 0});
    });
    const at::Tensor x_float = x.to(at::kFloat);
    at::parallel_for(0, std::ssize(tasks), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto [e, first, count, column] = tasks[static_cast<size_t>(i)];
        if (count > kDotRows<E>) {
          at::Tensor out = y.narrow(0, first, count);
          gemm.forward(out, x.narrow(0, first, count), part_of(weights, e, num_experts));
          continue;
        }
        const int64_t columns = std::min(kColumns, N - column);
        row_table<E>().dot_tile({x_float.data_ptr<float>() + first * K, pointer<E>(weights) + (e * N + column) * K, K, count, columns,
                                 pointer<E>(y) + first * N + column, N});
      }
    });
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weights) const {
    at::Tensor y = at::empty({x.size(0), weights.size(0) / num_experts}, x.options());
    if (side_by_side) {
      by_dtype(x, [&]<class E>(E) { dot_products<E>(x, weights, y); });
      return y;
    }
    rows.for_experts(false, [&](int64_t e, int64_t first, int64_t count) {
      at::Tensor out = y.narrow(0, first, count);
      gemm.forward(out, x.narrow(0, first, count), part_of(weights, e, num_experts));
    });
    return y;
  }
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weights, const at::Tensor& grad) const {
    at::Tensor dx = at::empty_like(x);
    rows.for_experts(side_by_side, [&](int64_t e, int64_t first, int64_t count) {
      const at::Tensor d = dy.narrow(0, first, count);
      if (grad.defined()) {
        at::Tensor dw = part_of(grad, e, num_experts);
        gemm.weight_grad(dw, d, x.narrow(0, first, count));
      }
      at::Tensor out = dx.narrow(0, first, count);
      gemm.input_grad(out, d, part_of(weights, e, num_experts));
    });
    return dx;
  }
};

// silu(gate) * up of each row.
at::Tensor activate(const at::Tensor& gate_up) {
  const int64_t F = gate_up.size(1) / 2;
  at::Tensor out = at::empty({gate_up.size(0), F}, gate_up.options());
  for_rows(gate_up.size(0), F, [&](int64_t begin, int64_t end) {
    by_dtype(gate_up, [&]<class E>(E) {
      for (int64_t r = begin; r < end; ++r) row_table<E>().swiglu(pointer<E>(gate_up) + 2 * r * F, F, pointer<E>(out) + r * F);
    });
  });
  return out;
}

// Each row times its weight.
at::Tensor scaled(const at::Tensor& rows, const at::Tensor& weights_S) {
  const int64_t F = rows.size(1);
  const float* w = weights_S.data_ptr<float>();
  at::Tensor out = at::empty_like(rows);
  for_rows(rows.size(0), F, [&](int64_t begin, int64_t end) {
    by_dtype(rows, [&]<class E>(E) {
      for (int64_t r = begin; r < end; ++r) scale_row(pointer<E>(rows) + r * F, F, w[r], pointer<E>(out) + r * F);
    });
  });
  return out;
}

// The weights multiply the activations, so that their gradient needs no output of an expert.
struct ExpertsStep final : Step {
  const Gemm* gemm = nullptr;
  std::shared_ptr<const Dispatch> dispatch;
  int64_t num_experts = 0;
  Parameter gate_up, down;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d_out = grad_of(grads, 0);
    const at::Tensor &x = saved[0], &weights = saved[1], &gate_up_S = saved[2];
    const Products products(*gemm, *dispatch, num_experts);
    const int64_t F = gate_up_S.size(1) / 2;
    const at::Tensor active = activate(gate_up_S);
    at::Tensor d_active = products.backward(dispatch->gather(d_out), scaled(active, weights), down.value, down.grad);
    at::Tensor d_weights = at::empty_like(weights), d_gate_up = at::empty_like(gate_up_S);
    const float* w = weights.data_ptr<float>();
    for_rows(gate_up_S.size(0), F, [&](int64_t begin, int64_t end) {
      by_dtype(x, [&]<class E>(E) {
        for (int64_t r = begin; r < end; ++r) {
          E* d = pointer<E>(d_active) + r * F;
          d_weights.data_ptr<float>()[r] = row_table<E>().dot(d, pointer<E>(active) + r * F, F);
          scale_row(d, F, w[r], d);
          row_table<E>().swiglu_backward(pointer<E>(gate_up_S) + 2 * r * F, d, F, pointer<E>(d_gate_up) + 2 * r * F);
        }
      });
    });
    const at::Tensor dx = products.backward(d_gate_up, dispatch->gather(x), gate_up.value, gate_up.grad);
    return {dispatch->combine(dx), dispatch->to_tokens(d_weights)};
  }
};

}  // namespace

at::Tensor experts(const Gemm& gemm, const at::Tensor& x, const Routing& routing, const ExpertWeights& experts) {
  const auto dispatch = std::make_shared<const Dispatch>(routing.experts_Tk, experts.place);
  const int64_t E = experts.place.num_held();
  const Products products(gemm, *dispatch, E);
  const at::Tensor gate_up_S = products.forward(dispatch->gather(x.detach()), experts.gate_up.value);
  const at::Tensor weights = dispatch->to_rows(routing.weights_Tk.detach());
  at::Tensor out = dispatch->combine(products.forward(scaled(activate(gate_up_S), weights), experts.down.value));
  if (recording({x, routing.weights_Tk})) {
    auto step = make_step<ExpertsStep>({x, routing.weights_Tk});
    step->gemm = &gemm;
    step->dispatch = dispatch;
    step->num_experts = E;
    step->gate_up = experts.gate_up;
    step->down = experts.down;
    step->saved = {x.detach(), weights, gate_up_S};
    attach(out, step);
  }
  return out;
}

}  // namespace tandem::model::kernel
