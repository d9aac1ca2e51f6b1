// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/pipeline.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::train {
namespace {

// Pass number k of one direction: rounds of `stages` micro-batches go through one chunk after the other.
PipelineAction nth(const PipelineShape& s, int64_t k, bool forward) {
  const int64_t round = static_cast<int64_t>(s.stages) * s.chunks, within = k % round;
  const int chunk = static_cast<int>(within / s.stages);
  return {forward, forward ? chunk : s.chunks - 1 - chunk, k / round * s.stages + within % s.stages};
}

}  // namespace

int64_t padded_micro_batches(const PipelineShape& s, int64_t count) {
  return s.chunks == 1 ? count : (count + s.stages - 1) / s.stages * s.stages;
}

std::vector<PipelineAction> pipeline_actions(const PipelineShape& s, int64_t micro_batches) {
  TANDEM_CHECK(padded_micro_batches(s, micro_batches) == micro_batches, micro_batches, " micro-batches over ", s.stages, " stages");
  const int64_t passes = micro_batches * s.chunks, behind = s.stages - s.stage - 1;
  const int64_t ahead = std::min(passes, s.chunks == 1 ? behind : 2 * behind + static_cast<int64_t>(s.chunks - 1) * s.stages);
  // With one chunk the round is a single micro-batch, in order.
  const PipelineShape order = s.chunks == 1 ? PipelineShape{1, 1, 0} : s;
  std::vector<PipelineAction> actions;
  for (int64_t k = 0; k < passes + ahead; ++k) {
    if (k < passes) actions.push_back(nth(order, k, true));
    if (k >= ahead) actions.push_back(nth(order, k - ahead, false));
  }
  return actions;
}

}  // namespace tandem::train
