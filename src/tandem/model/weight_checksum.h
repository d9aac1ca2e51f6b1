// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which weights these are, whatever layout holds them.

#include <string>

#include "tandem/comm/group.h"
#include "tandem/model/parameters.h"

namespace tandem::model {

/// A text that is equal for equal weights of one dtype. Collective over the ranks of the table's layout.
std::string weight_checksum(const ParameterTable& table, const at::Tensor& values, comm::Group& world);

}  // namespace tandem::model
