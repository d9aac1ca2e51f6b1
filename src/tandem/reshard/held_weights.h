// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's weights as the tensors that a plan of table_of() numbers.

#include "tandem/model/parameters.h"
#include "tandem/reshard/execute.h"

namespace tandem::reshard {

/// Views of `values`, which lie as the table says; numbers are those of its entries. `dtype` is that of elements on the way: that of
/// `values`, or bfloat16 where those are float32. A tensor that the model keeps in fp32 is viewed as elements of `dtype`, bit for bit: no
/// switch rounds it.
std::vector<Held> held_weights(const model::ParameterTable& table, const at::Tensor& values, at::ScalarType dtype);

}  // namespace tandem::reshard
