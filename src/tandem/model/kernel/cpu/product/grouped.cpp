// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/grouped.h"

#include <ATen/ops/empty.h>

#include <functional>
#include <vector>

#include "tandem/model/kernel/cpu/product/gemm.h"
#include "tandem/model/kernel/cpu/row_loop.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kFewRows = 32;  // per expert: then experts run side by side, each on one thread
// Up to here dot products with the weights as they lie are faster than a library that repacks them; with matrix units it catches up
// earlier.
template <class E>
constexpr int64_t kDotRows = sizeof(E) == 2 ? 8 : 24;
constexpr int64_t kColumns = 64;  // of one task

// Expert e's part of a parameter that holds them all.
at::Tensor part_of(const at::Tensor& all, int64_t expert, int64_t num_experts) {
  const int64_t rows = all.size(0) / num_experts;
  return all.narrow(0, expert * rows, rows);
}

bool side_by_side(const Numerics& n, const ExpertRows& rows) { return !n.parity && rows.num_rows() < kFewRows * rows.num_experts(); }

// run(expert, first row, rows) for experts that have any.
void for_experts(const ExpertRows& rows, bool side_by_side, const std::function<void(int64_t, int64_t, int64_t)>& run) {
  const auto some = [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t first = rows.offsets[static_cast<size_t>(e)], count = rows.offsets[static_cast<size_t>(e) + 1] - first;
      if (count > 0) run(e, first, count);
    }
  };
  if (side_by_side) at::parallel_for(0, rows.num_experts(), 1, some);
  else some(0, rows.num_experts());
}

// Experts with few rows are cut into tasks of some columns, so that threads share the reading of the weights evenly.
template <class E>
void dot_products(const Numerics& n, const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows, at::Tensor& y) {
  struct Task {
    int64_t expert, first, count, column;
  };
  std::vector<Task> tasks;
  const int64_t N = y.size(1), K = x.size(1);
  for_experts(rows, false, [&](int64_t e, int64_t first, int64_t count) {
    for (int64_t column = 0; column < N && count <= kDotRows<E>; column += kColumns) tasks.push_back({e, first, count, column});
    if (count > kDotRows<E>) tasks.push_back({e, first, count, 0});
  });
  const at::Tensor x_float = x.to(at::kFloat);
  at::parallel_for(0, std::ssize(tasks), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [e, first, count, column] = tasks[static_cast<size_t>(i)];
      if (count > kDotRows<E>) {
        at::Tensor out = y.narrow(0, first, count);
        forward(n, out, x.narrow(0, first, count), part_of(weights, e, rows.num_experts()));
        continue;
      }
      const int64_t columns = std::min(kColumns, N - column);
      row_table<E>().dot_tile({x_float.data_ptr<float>() + first * K, pointer<E>(weights) + (e * N + column) * K, K, count, columns,
                               pointer<E>(y) + first * N + column, N});
    }
  });
}

}  // namespace

at::Tensor grouped_forward(const Numerics& n, const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows) {
  at::Tensor y = at::empty({x.size(0), weights.size(0) / rows.num_experts()}, x.options());
  if (side_by_side(n, rows)) {
    by_dtype(x, [&]<class E>(E) { dot_products<E>(n, x, weights, rows, y); });
    return y;
  }
  for_experts(rows, false, [&](int64_t e, int64_t first, int64_t count) {
    at::Tensor out = y.narrow(0, first, count);
    forward(n, out, x.narrow(0, first, count), part_of(weights, e, rows.num_experts()));
  });
  return y;
}

at::Tensor grouped_input_grad(const Numerics& n, const at::Tensor& dy, const at::Tensor& weights, const ExpertRows& rows) {
  at::Tensor dx = at::empty({dy.size(0), weights.size(1)}, dy.options());
  for_experts(rows, side_by_side(n, rows), [&](int64_t e, int64_t first, int64_t count) {
    at::Tensor out = dx.narrow(0, first, count);
    input_grad(n, out, dy.narrow(0, first, count), part_of(weights, e, rows.num_experts()));
  });
  return dx;
}

void grouped_weight_grad(const Numerics& n, at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const ExpertRows& rows) {
  for_experts(rows, side_by_side(n, rows), [&](int64_t e, int64_t first, int64_t count) {
    at::Tensor part = part_of(dw, e, rows.num_experts());
    weight_grad(n, part, dy.narrow(0, first, count), x.narrow(0, first, count));
  });
}

}  // namespace tandem::model::kernel::cpu
