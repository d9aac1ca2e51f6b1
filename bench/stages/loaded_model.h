// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model of its own, for the benchmarks that need no run.

#include <memory>
#include <vector>

#include "options.h"
#include "tandem/comm/launch.h"
#include "tandem/model/model_on_rank.h"

namespace tandem::bench {

/// Ownership  owns arena, kernels and weights; `options` must outlive it.
/// Errors     UserError for a model or a dtype that is none.
struct LoadedModel {
  const Computing& options;
  device::Arena arena;
  std::unique_ptr<comm::Group> alone = comm::single();
  model::kernel::Kernels kernels;
  model::ModelOnRank model;

  /// Sets the compute threads of the calling thread, then measures and loads.
  explicit LoadedModel(const Computing& options);
  /// `n` ids that are no special token; the same for the same seed and stream.
  std::vector<int32_t> random_ids(int64_t n, uint64_t stream) const;
};

/// Compute threads that options.threads means.
int num_threads(const WithModel& options);

}  // namespace tandem::bench
