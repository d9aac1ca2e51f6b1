// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/held_weights.h"

#include "tandem/base/check.h"

namespace tandem::reshard {

std::vector<Held> held_weights(const model::ParameterTable& table, const at::Tensor& values) {
  std::vector<Held> all;
  auto entry = table.entries.begin();
  int32_t number = 0;
  for (const model::family::Parameter& p : model::flat_order(model::family::parameters(table.config))) {
    if (entry != table.entries.end() && entry->parameter.name == p.name) {
      const at::Tensor words = table.words(values, *entry);
      all.push_back({number, p.in_float() ? Box::whole(words.sizes().vec()) : entry->box, words});
      ++entry;
    }
    ++number;
  }
  TANDEM_CHECK(entry == table.entries.end(), "parameters in another order than the table's");
  return all;
}

}  // namespace tandem::reshard
