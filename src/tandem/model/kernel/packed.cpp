// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/packed.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Scalar.h>

#include <string_view>

#include "tandem/base/check.h"

namespace tandem::model::kernel {
namespace {

using Reorder = at::Tensor(const at::Tensor&, std::optional<int64_t>);
using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                          c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

// Looked up once: the operators are registered when libtorch is loaded and stay.
std::optional<c10::OperatorHandle> find(const char* name) { return c10::Dispatcher::singleton().findSchema({name, ""}); }

}  // namespace

bool packing_available() {
  static const bool available = find("mkldnn::_reorder_linear_weight") && find("mkldnn::_linear_pointwise");
  return available;
}

at::Tensor pack_weight(const at::Tensor& w) {
  static const auto reorder = find("mkldnn::_reorder_linear_weight")->typed<Reorder>();
  at::NoGradGuard off;
  return reorder.call(w.detach(), std::nullopt);
}

int64_t packed_bytes(const at::Tensor& w) { return w.numel() * w.element_size(); }

at::Tensor packed_product(const at::Tensor& x, const at::Tensor& packed) {
  static const auto linear = find("mkldnn::_linear_pointwise")->typed<Linear>();
  return linear.call(x, packed, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace tandem::model::kernel
