// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's weights as the tensors that a plan of table_of() numbers.

#include "tandem/model/parameters.h"
#include "tandem/reshard/execute.h"

namespace tandem::reshard {

/// Views of `values`, which lie as the table says.
std::vector<Held> held_weights(const model::ParameterTable& table, const at::Tensor& values);

}  // namespace tandem::reshard
