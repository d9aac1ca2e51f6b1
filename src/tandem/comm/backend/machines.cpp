// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/machines.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "tandem/base/check.h"

namespace tandem::comm {

WorldOrder order_by_machine(const std::vector<int>& first_of_machine) {
  const auto first_of = [&](int launched) { return first_of_machine[static_cast<size_t>(launched)]; };
  WorldOrder order;
  order.launched.resize(first_of_machine.size());
  std::iota(order.launched.begin(), order.launched.end(), 0);
  std::ranges::sort(order.launched, {}, [&](int launched) { return std::tuple(first_of(launched), launched); });
  int machine = 0;
  for (size_t r = 0; r < order.launched.size(); ++r) {
    if (r > 0 && first_of(order.launched[r]) != first_of(order.launched[r - 1])) ++machine;
    order.machine.push_back(machine);
  }
  return order;
}

std::string to_text(const WorldOrder& order, const std::vector<std::string>& names) {
  std::string text;
  const size_t size = order.machine.size();
  for (size_t begin = 0, end = 0; begin < size; begin = end) {
    std::string launched;
    bool is_same = true;
    for (; end < size && order.machine[end] == order.machine[begin]; ++end) {
      is_same = is_same && order.launched[end] == static_cast<int>(end);
      launched += join_text(launched.empty() ? "" : ", ", order.launched[end]);
    }
    text += join_text(text.empty() ? "" : ", ", end - begin == 1 ? "rank " : "ranks ", begin);
    if (end - begin > 1) text += join_text("-", end - 1);
    text += " on " + names[begin];
    if (!is_same) text += " (the launcher's " + launched + ")";
  }
  return text;
}

}  // namespace tandem::comm
