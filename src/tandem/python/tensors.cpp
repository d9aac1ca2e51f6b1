// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/tensors.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/python_variable.h>

namespace tandem::python {

nb::object to_python(const at::Tensor& values) {
  if (!values.defined()) return nb::none();
  const at::Tensor held = values.contiguous();
  // A tensor of its own on the same memory: what Python sets on it, such as requires_grad, stays there.
  return nb::steal(THPVariable_Wrap(at::from_blob(held.data_ptr(), {held.numel()}, [held](void*) {}, held.options())));
}

at::Tensor from_python(const nb::handle& tensor, at::ScalarType dtype) {
  if (tensor.is_none()) return {};
  if (!THPVariable_Check(tensor.ptr())) throw nb::cast_error();
  const at::Tensor& given = THPVariable_Unpack(tensor.ptr());
  if (given.scalar_type() != dtype || given.dim() != 1 || !given.device().is_cpu() || !given.is_contiguous()) throw nb::cast_error();
  return given;
}

}  // namespace tandem::python
