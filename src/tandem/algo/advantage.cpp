// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/advantage.h"

#include <cmath>
#include <unordered_map>

#include "tandem/base/check.h"

namespace tandem::algo {

std::vector<double> group_advantages(std::span<const double> scores, std::span<const int64_t> groups, const Algorithm& algorithm) {
  TANDEM_CHECK(scores.size() == groups.size(), scores.size(), " scores of ", groups.size(), " groups");
  struct Moments {
    double count = 0, sum = 0, squares = 0;
    double mean() const { return count > 1 ? sum / count : 0; }
    double deviation() const { return count > 1 ? std::sqrt(squares / (count - 1)) : 1; }
  };
  std::unordered_map<int64_t, Moments> moments;
  for (size_t i = 0; i < scores.size(); ++i) {
    Moments& m = moments[groups[i]];
    m.count += 1;
    m.sum += scores[i];
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    Moments& m = moments[groups[i]];
    const double distance = scores[i] - m.mean();
    m.squares += distance * distance;
  }
  std::vector<double> result(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const Moments& m = moments[groups[i]];
    result[i] = scores[i] - m.mean();
    if (algorithm.advantage == Advantage::kGrpo) result[i] /= m.deviation() + algorithm.std_eps;
  }
  return result;
}

}  // namespace tandem::algo
