// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors of C++ as tensors of Python, and back. Call all of it with the interpreter's lock held. None of it runs code of Python,
// in which a signal's handler could raise what nobody then hears of.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <vector>

namespace tandem::python {

namespace nb = nanobind;

/// A tensor of Python with the memory of `values` [n], which stays as long as either does; None for an undefined one.
nb::object to_python(const at::Tensor& values);

/// The tensor of C++ that a tensor of Python [n] is; undefined for None. Errors: nb::cast_error unless it has this dtype and is contiguous
/// in the processor's memory.
at::Tensor from_python(const nb::handle& tensor, at::ScalarType dtype);

/// A tensor of Python with memory of its own, of any numbers as `Value`.
template <class Value, class Given>
nb::object copied(const Given& values) {
  at::Tensor out = at::empty({std::ssize(values)}, c10::CppTypeToScalarType<Value>::value);
  std::ranges::copy(values, out.data_ptr<Value>());
  return to_python(out);
}

/// The numbers of a tensor of Python [n] of the dtype `Given`; none of None. Errors: as from_python.
template <class Value, class Given = Value>
std::vector<Value> numbers(const nb::handle& tensor) {
  const at::Tensor given = from_python(tensor, c10::CppTypeToScalarType<Given>::value);
  if (!given.defined()) return {};
  const Given* data = given.data_ptr<Given>();
  return std::vector<Value>(data, data + given.numel());
}

}  // namespace tandem::python
