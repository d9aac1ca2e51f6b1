// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/row_plan.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::data {

std::vector<RowMove> plan_rows(std::span<const RowPlace> places) {
  std::vector<RowMove> moves;
  int ranks = 0;
  for (const RowPlace& place : places)
    for (int holder : place.holders) ranks = std::max(ranks, holder + 1);
  std::vector<int64_t> sent(static_cast<size_t>(ranks));  // bytes by rank
  const auto sent_by = [&](int rank) -> int64_t& { return sent[static_cast<size_t>(rank)]; };
  for (const RowPlace& place : places) {
    TANDEM_CHECK(!place.holders.empty() || place.wanters.empty(), "nobody holds sample ", value(place.row.sample));
    for (int to : place.wanters) {
      if (std::ranges::find(place.holders, to) != place.holders.end()) continue;
      const int from = *std::ranges::min_element(place.holders, {}, sent_by);
      sent_by(from) += place.bytes;
      moves.push_back({place.row, from, to});
    }
  }
  return moves;
}

}  // namespace tandem::data
