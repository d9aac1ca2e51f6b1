// SPDX-License-Identifier: Apache-2.0
#include "tandem/pull/boxes.h"

#include <algorithm>
#include <optional>

#include "tandem/base/error.h"

namespace tandem::pull {

at::Tensor view_of(std::span<const reshard::Held> held, const NumberedBox& wanted) {
  const auto found = std::ranges::lower_bound(held, wanted.number, {}, &reshard::Held::number);
  const bool is_there = found != held.end() && found->number == wanted.number && wanted.box.begin.size() == found->box.begin.size();
  if (!is_there || intersect(wanted.box, found->box) != wanted.box)
    throw PeerError("request of weights: parameter " + std::to_string(wanted.number) + " is not held so");
  at::Tensor part = found->tensor;
  for (size_t d = 0; d < wanted.box.begin.size(); ++d)
    part = part.narrow(static_cast<int64_t>(d), wanted.box.begin[d] - found->box.begin[d], wanted.box.extent(d));
  return part;
}

std::vector<NumberedBox> common_boxes(std::span<const reshard::Held> wanted, std::span<const reshard::Held> held) {
  std::vector<NumberedBox> common;
  auto has = held.begin();
  for (const reshard::Held& want : wanted) {
    while (has != held.end() && has->number < want.number) ++has;
    if (has == held.end() || has->number != want.number) continue;
    if (const std::optional<Box> both = intersect(want.box, has->box)) common.push_back({want.number, *both});
  }
  return common;
}

std::vector<NumberedBox> pieces_of(const NumberedBox& box, int64_t most_elements) {
  if (box.box.begin.empty() || box.box.num_elements() <= most_elements) return {box};
  const int64_t row = box.box.num_elements() / box.box.extent(0), rows = std::max<int64_t>(1, most_elements / row);
  std::vector<NumberedBox> pieces;
  for (int64_t at = box.box.begin[0]; at < box.box.end[0]; at += rows) {
    NumberedBox& piece = pieces.emplace_back(box);
    piece.box.begin[0] = at;
    piece.box.end[0] = std::min(box.box.end[0], at + rows);
  }
  return pieces;
}

}  // namespace tandem::pull
