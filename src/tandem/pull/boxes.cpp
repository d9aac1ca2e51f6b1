// SPDX-License-Identifier: Apache-2.0
#include "tandem/pull/boxes.h"

#include <algorithm>
#include <optional>
#include <utility>

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

namespace {

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

}  // namespace

std::vector<std::vector<NumberedBox>> parts_of(std::span<const NumberedBox> boxes, at::ScalarType dtype) {
  const int64_t most = kMostBytesAtOnce / static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<std::vector<NumberedBox>> parts;
  int64_t elements = most;
  for (const NumberedBox& box : boxes)
    for (NumberedBox& piece : pieces_of(box, most)) {
      const int64_t more = piece.box.num_elements();
      if (elements + more > most) parts.emplace_back(), elements = 0;
      parts.back().push_back(std::move(piece)), elements += more;
    }
  return parts;
}

std::vector<std::byte> values_of(std::span<const reshard::Held> held, std::span<const NumberedBox> boxes, at::ScalarType dtype) {
  std::vector<std::byte> bytes;
  for (const NumberedBox& each : boxes) {
    const at::Tensor part = view_of(held, each).to(dtype).cpu().contiguous();
    const auto* from = static_cast<const std::byte*>(part.data_ptr());
    bytes.insert(bytes.end(), from, from + part.nbytes());
  }
  return bytes;
}

}  // namespace tandem::pull
