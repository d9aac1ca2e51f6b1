// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/box.h"

#include <algorithm>
#include <iterator>

#include "tandem/base/check.h"

namespace tandem {

int64_t Box::num_elements() const {
  int64_t n = 1;
  for (size_t d = 0; d < begin.size(); ++d) n *= extent(d);
  return n;
}

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> s(begin.size());
  for (size_t d = 0; d < s.size(); ++d) s[d] = extent(d);
  return s;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  TANDEM_CHECK(a.begin.size() == b.begin.size(), "boxes of different rank");
  Box common = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    common.begin[d] = std::max(a.begin[d], b.begin[d]);
    common.end[d] = std::min(a.end[d], b.end[d]);
    if (common.begin[d] >= common.end[d]) return std::nullopt;
  }
  return common;
}

std::vector<Box> subtract(const Box& box, const Box& hole) {
  const auto common = intersect(box, hole);
  if (!common) return {box};
  std::vector<Box> parts;
  Box rest = box;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    if (rest.begin[d] < common->begin[d]) {
      parts.push_back(rest);
      parts.back().end[d] = rest.begin[d] = common->begin[d];
    }
    if (common->end[d] < rest.end[d]) {
      parts.push_back(rest);
      parts.back().begin[d] = rest.end[d] = common->end[d];
    }
  }
  return parts;
}

std::vector<Box> subtract(const std::vector<Box>& boxes, const Box& hole) {
  std::vector<Box> parts;
  for (const Box& box : boxes) std::ranges::move(subtract(box, hole), std::back_inserter(parts));
  return parts;
}

std::vector<Box> cut(const std::vector<Box>& boxes, const Box& by) {
  std::vector<Box> parts;
  for (const Box& box : boxes) {
    if (const auto common = intersect(box, by)) parts.push_back(*common);
    std::ranges::move(subtract(box, by), std::back_inserter(parts));
  }
  return parts;
}

std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  // Rows of the dimension d below a fixed index of those before it; what is not whole rows goes one dimension down.
  const auto take = [&](auto& self, Box rest, size_t d, int64_t from, int64_t to) -> void {
    if (from >= to) return;
    if (d == box.begin.size()) return boxes.push_back(std::move(rest));
    int64_t row = 1;
    for (size_t inner = d + 1; inner < box.begin.size(); ++inner) row *= box.extent(inner);
    const auto rows = [&](int64_t first, int64_t last) {
      Box part = rest;
      part.begin[d] = box.begin[d] + first, part.end[d] = box.begin[d] + last;
      return part;
    };
    const int64_t first_whole = (from + row - 1) / row, last_whole = to / row, first = from / row;
    if (first_whole > last_whole) return self(self, rows(first, first + 1), d + 1, from - first * row, to - first * row);
    self(self, rows(first, first + 1), d + 1, from - first * row, first_whole * row - first * row);
    if (first_whole < last_whole) boxes.push_back(rows(first_whole, last_whole));
    self(self, rows(last_whole, last_whole + 1), d + 1, 0, to - last_whole * row);
  };
  take(take, box, 0, begin, end);
  return boxes;
}

int64_t position_in(const Box& box, const std::vector<int64_t>& element) {
  TANDEM_CHECK(element.size() == box.begin.size(), "an element of another tensor");
  int64_t position = 0;
  for (size_t d = 0; d < element.size(); ++d) position = position * box.extent(d) + element[d] - box.begin[d];
  return position;
}

}  // namespace tandem
