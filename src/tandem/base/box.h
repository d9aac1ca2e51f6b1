// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tensor in global terms and a box of it: the one language in which checkpoint, model, optimizer and reshard speak.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

/// Half-open ranges [begin, end) per dimension of a global tensor.
struct Box {
  std::vector<int64_t> begin, end;

  static Box whole(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }
  int64_t extent(size_t dim) const { return end[dim] - begin[dim]; }
  int64_t num_elements() const;
  std::vector<int64_t> shape() const;
  bool operator==(const Box&) const = default;
};

/// The common part of two boxes of one tensor; nullopt if they do not meet.
std::optional<Box> intersect(const Box& a, const Box& b);

/// The parts of `box` outside `hole`, disjoint; at most two per dimension. So of several boxes, in their order.
std::vector<Box> subtract(const Box& box, const Box& hole);
std::vector<Box> subtract(const std::vector<Box>& boxes, const Box& hole);

/// `boxes`, cut where `by` begins and ends.
std::vector<Box> cut(const std::vector<Box>& boxes, const Box& by);

/// Elements [begin, end) of a box, row by row, as boxes in that order; of a matrix at most three.
std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end);

/// How many elements of the box come before one of them, row by row.
int64_t position_in(const Box& box, const std::vector<int64_t>& element);

/// A tensor by its Hugging Face name, its global shape, and the box of it that someone holds.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  Box box;
};

}  // namespace tandem
