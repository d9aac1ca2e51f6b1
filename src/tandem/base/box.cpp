// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/box.h"

#include <algorithm>

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

}  // namespace tandem
