// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/onednn.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Scalar.h>
#include <torch/library.h>

#include <exception>
#include <optional>
#include <string_view>

#include "tandem/base/check.h"

namespace tandem::model::kernel {
namespace {

using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                          c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
using LinearOut = at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&);
using Reorder = at::Tensor(const at::Tensor&, std::optional<int64_t>);

// The operators are registered when libtorch is loaded and stay.
template <class Signature>
c10::TypedOperatorHandle<Signature> found(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Libtorch may have been built without, have another form, or list other processors: then the call throws.
bool multiplies(c10::ScalarType dtype) {
  try {
    const at::Tensor some = at::zeros({16, 16}, dtype);
    (void)onednn_linear(some, onednn_pack(some));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

at::Tensor& linear_out(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) { return out.copy_(onednn_linear(x, w)); }

// oneDNN's own has no form that writes in place.
TORCH_LIBRARY(tandem, library) {
  library.def("linear_out(Tensor(a!) out, Tensor x, Tensor w) -> Tensor(a!)");
  library.impl("linear_out", c10::DispatchKey::CPU, TORCH_FN(linear_out));
}

}  // namespace

bool onednn_multiplies(c10::ScalarType dtype) {
  static const bool floats = multiplies(at::kFloat), halves = multiplies(at::kBFloat16);
  TANDEM_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "products of ", c10::toString(dtype));
  return dtype == at::kFloat ? floats : halves;
}

at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& w) {
  static const auto linear = found<Linear>("mkldnn::_linear_pointwise");
  return linear.call(x, w, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

void onednn_linear_out(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  static const auto linear = found<LinearOut>("tandem::linear_out");
  linear.call(out, x, w);
}

at::Tensor onednn_pack(const at::Tensor& w) {
  static const auto reorder = found<Reorder>("mkldnn::_reorder_linear_weight");
  return reorder.call(w, std::nullopt);
}

}  // namespace tandem::model::kernel
