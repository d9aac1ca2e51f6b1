// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rows go where when two stages lay a batch out over the ranks differently. Pure: who holds a row and who wants it in, the
// rows that move out. runtime/sample/batch_rows.cpp asks; queue/body/tensor_cache.h:TensorCache then moves them.

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/base/ids.h"

namespace tandem::data {

/// The fields of one part of a sample; they move together. Which fields make a part, the table that holds them says.
struct RowPart {
  SampleId sample{};
  int32_t part = 0;
  bool operator==(const RowPart&) const = default;
};

/// Where a row is and where it should be, as ranks of one group, each at most once. Wanted rows have a holder.
struct RowPlace {
  RowPart row;
  int64_t bytes = 0;
  std::span<const int> holders, wanters;
};

struct RowMove {
  RowPart row;
  int from = 0, to = 0;
  bool operator==(const RowMove&) const = default;
};

/// Moves each wanted row once to each rank that wants it and does not hold it: the fewest bytes there can be. The moves stand in
/// the order of `places`. Of several holders, the one that sends the fewest bytes so far sends it. Equal layouts give no move. Equal
/// places give equal plans, so ranks that know them agree. Errors: InternalError for a wanted row that nobody holds.
std::vector<RowMove> plan_rows(std::span<const RowPlace> places);

}  // namespace tandem::data
