// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which weights these are, whatever layout holds them, and whether all ranks that hold the same hold the same bits.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/model/parameters.h"

namespace tandem::model {

/// A number of one box of a tensor's elements. Boxes that share no element add up to the sum of the box that they make up.
struct BoxSum {
  uint64_t box;  ///< stands for its tensor's name and its place there
  uint64_t sum;
};

/// Of every box that a rank holds; `values` as the table has them, on any device. A model and its adapters are two tables, whose sums may
/// stand in one list.
std::vector<BoxSum> box_sums(const ParameterTable& table, const at::Tensor& values);

/// The sum of one box by libtorch's operators, in slices, where the words lie: what box_sums() takes on devices other than the CPU.
uint64_t sum_by_operators(const ParameterEntry& entry, const at::Tensor& held);

/// Of all boxes of all ranks, each once: equal for equal weights of one dtype. Ranks may hold any boxes, or none. Collective.
/// Errors: PeerError on all ranks where one holds other bits of a box than a rank before it; it names `what` and that rank.
uint64_t sum_of_all(comm::Group& ranks, const std::vector<BoxSum>& mine, const std::string& what);

/// Its low 52 bits, which a double holds exactly: the metric gap/weights_checksum.
inline double metric_of(uint64_t sum) { return static_cast<double>(sum & ((uint64_t{1} << 52) - 1)); }

/// That sum as a text. Collective over the ranks of the table's layout. Errors: as above.
std::string weight_checksum(const ParameterTable& table, const at::Tensor& values, comm::Group& world);

}  // namespace tandem::model
