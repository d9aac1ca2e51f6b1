// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's weights as the tensors that a plan of table_of() numbers.

#include "tandem/model/parameters.h"
#include "tandem/reshard/execute.h"

namespace tandem::reshard {

/// Views of `values`, which lie as the table says. `dtype` is that of elements on the way: that of `values`, or bfloat16 where those are
/// float32. What is kept in fp32 whatever the dtype is seen as the bits of elements of `dtype`, so that a switch leaves them as they are.
std::vector<Held> held_weights(const model::ParameterTable& table, const at::Tensor& values, at::ScalarType dtype);

}  // namespace tandem::reshard
