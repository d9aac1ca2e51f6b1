// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/gap.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::algo {

void GapSums::add(double gap) {
  if (!std::isfinite(gap)) gap = std::numeric_limits<double>::infinity();
  sum_ += gap;
  max = std::max(max, gap);
  if (gap == 0) {
    ++zeros_;
    return;
  }
  const double last = static_cast<double>(bins_.size()) - 1;
  ++bins_[static_cast<size_t>(std::clamp(std::floor((std::log2(gap) - kLowest) * kPerOctave), 0.0, last))];
}

void GapSums::add(const GapSums& other) {
  sum_ += other.sum_;
  zeros_ += other.zeros_;
  for (size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
  max = std::max(max, other.max);
}

int64_t GapSums::tokens() const {
  double tokens = zeros_;
  for (const double bin : bins_) tokens += bin;
  return static_cast<int64_t>(tokens);
}

std::optional<GapReport> GapSums::report() const {
  const auto n = static_cast<double>(tokens());
  if (n == 0) return std::nullopt;
  GapReport report{.mean = sum_ / n, .p99 = 0, .max = max};
  double left = std::ceil(0.99 * n) - zeros_;
  for (size_t i = 0; i < bins_.size() && left > 0; ++i) {
    left -= bins_[i];
    report.p99 = std::min(max, std::exp2(kLowest + (static_cast<double>(i) + 0.5) / kPerOctave));
  }
  return report;
}

}  // namespace tandem::algo
