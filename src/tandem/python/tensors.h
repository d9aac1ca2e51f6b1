// SPDX-License-Identifier: Apache-2.0
#pragma once
// Columns of numbers as tensors of Python, and back. Call all of it with the interpreter's lock held.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace tandem::python {

namespace nb = nanobind;

/// A tensor of Python with the memory of `values` [n], which stays as long as either does; None for an undefined one.
template <class Value>
nb::object column(const at::Tensor& values) {
  if (!values.defined()) return nb::none();
  auto held = std::make_unique<at::Tensor>(values.contiguous());
  const size_t shape[] = {static_cast<size_t>(values.numel())};
  Value* data = held->data_ptr<Value>();
  const nb::capsule owner(held.release(), [](void* tensor) noexcept { delete static_cast<at::Tensor*>(tensor); });
  return nb::cast(nb::ndarray<nb::pytorch, Value, nb::ndim<1>>(data, 1, shape, owner));
}

/// A tensor of Python with memory of its own, of any numbers as `Value`.
template <class Value, class Given>
nb::object copied(const Given& values) {
  at::Tensor out = at::empty({std::ssize(values)}, c10::CppTypeToScalarType<Value>::value);
  std::ranges::copy(values, out.data_ptr<Value>());
  return column<Value>(out);
}

/// The numbers of a tensor of Python [n] of the dtype `Given`; none of None. Errors: nb::cast_error for anything else.
template <class Value, class Given = Value>
std::vector<Value> numbers(const nb::handle& tensor) {
  if (tensor.is_none()) return {};
  const auto array = nb::cast<nb::ndarray<const Given, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(tensor);
  return std::vector<Value>(array.data(), array.data() + array.size());
}

}  // namespace tandem::python
