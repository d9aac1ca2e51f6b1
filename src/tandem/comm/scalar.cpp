// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/scalar.h"

#include <ATen/ops/from_blob.h>

namespace tandem::comm {
namespace {

template <class Number>
void reduce(Group& group, std::span<Number> numbers, ReduceOp op) {
  if (group.size() == 1) return;
  at::Tensor mine = at::from_blob(numbers.data(), {std::ssize(numbers)}, c10::CppTypeToScalarType<Number>::value);
  at::Tensor there = mine.to(group.device());
  group.all_reduce(there, op);
  mine.copy_(there);
}

template <class Number>
Number reduced(Group& group, Number mine, ReduceOp op) {
  reduce(group, std::span(&mine, 1), op);
  return mine;
}

}  // namespace

int64_t max_over(Group& group, int64_t mine) { return reduced(group, mine, ReduceOp::kMax); }
double max_over(Group& group, double mine) { return reduced(group, mine, ReduceOp::kMax); }
int64_t min_over(Group& group, int64_t mine) { return -reduced(group, -mine, ReduceOp::kMax); }
double min_over(Group& group, double mine) { return -reduced(group, -mine, ReduceOp::kMax); }
int64_t sum_over(Group& group, int64_t mine) { return reduced(group, mine, ReduceOp::kSum); }
double sum_over(Group& group, double mine) { return reduced(group, mine, ReduceOp::kSum); }

bool any_of(Group& group, bool mine) { return max_over(group, int64_t{mine}) != 0; }

void max_over(Group& group, std::span<int64_t> numbers) { reduce(group, numbers, ReduceOp::kMax); }
void max_over(Group& group, std::span<double> numbers) { reduce(group, numbers, ReduceOp::kMax); }
void sum_over(Group& group, std::span<double> numbers) { reduce(group, numbers, ReduceOp::kSum); }

}  // namespace tandem::comm
