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

/// A tensor by its Hugging Face name, its global shape, and the box of it that someone holds.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  Box box;
};

}  // namespace tandem
