// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/held_weights.h"

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

at::Tensor as_sent(const model::ParameterTable& table, const at::Tensor& values, const model::ParameterEntry& entry, at::ScalarType dtype) {
  if (!entry.parameter.in_float() || values.scalar_type() == dtype) return table.words(values, entry);
  return table.view(values, entry).view(dtype);
}

}  // namespace

std::vector<Held> held_weights(const model::ParameterTable& table, const at::Tensor& values, at::ScalarType dtype) {
  TANDEM_CHECK(c10::elementSize(dtype) <= values.element_size(), "elements that would be widened on the way");
  std::vector<Held> all;
  for (const model::ParameterEntry& entry : table.entries) {
    const at::Tensor tensor = as_sent(table, values, entry, dtype);
    all.push_back({entry.number, entry.parameter.in_float() ? Box::whole(tensor.sizes().vec()) : entry.box, tensor});
  }
  return all;
}

}  // namespace tandem::reshard
