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
  auto entry = table.entries.begin();
  int32_t number = 0;
  for (const model::family::Parameter& p : model::flat_order(model::family::parameters(table.config))) {
    if (entry != table.entries.end() && entry->parameter.name == p.name) {
      const at::Tensor tensor = as_sent(table, values, *entry, dtype);
      all.push_back({number, p.in_float() ? Box::whole(tensor.sizes().vec()) : entry->box, tensor});
      ++entry;
    }
    ++number;
  }
  TANDEM_CHECK(entry == table.entries.end(), "parameters in another order than the table's");
  return all;
}

}  // namespace tandem::reshard
