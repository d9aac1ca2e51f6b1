// SPDX-License-Identifier: Apache-2.0
#pragma once
// The elements of a box one by one: slow and obvious, to compare with what is not.

#include <vector>

#include "tandem/base/box.h"

namespace tandem::test {

/// Every element by its index in a tensor whose dimensions are 16 long.
template <class Visit>
void each_element(const Box& box, Visit visit) {
  for (int64_t i = 0; i < box.num_elements(); ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t d = box.begin.size(); d-- > 0;) {
      flat += (box.begin[d] + rest % box.extent(d)) * stride;
      rest /= box.extent(d);
      stride *= 16;
    }
    visit(flat);
  }
}

inline std::vector<int64_t> elements_of(const std::vector<Box>& boxes) {
  std::vector<int64_t> all;
  for (const Box& box : boxes) each_element(box, [&](int64_t e) { all.push_back(e); });
  return all;
}

}  // namespace tandem::test
