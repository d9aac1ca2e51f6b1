// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "tandem/base/rng.h"

namespace tandem::test {

/// N(0, deviation); a function of shape and seed alone.
inline at::Tensor random_tensor(std::vector<int64_t> shape, uint64_t seed, c10::ScalarType dtype = at::kFloat, double deviation = 1.0) {
  at::Tensor t = at::empty(shape, at::kFloat);
  RandomStream random(seed, 99);
  for (int64_t i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = static_cast<float>(random.normal() * deviation);
  return t.to(dtype);
}

/// Largest |got - want| / bound, element by element.
inline double worst_of_bound(const at::Tensor& got, const at::Tensor& want, const at::Tensor& bound) {
  return ((got.to(at::kDouble) - want).abs() / bound).max().item<double>();
}

}  // namespace tandem::test
