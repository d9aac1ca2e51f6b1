// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one rank of a worker generates with: weights in use, and others beside them, which a fetch fills. Of a run that trains adapters it
// fetches the model under them once, then the adapters of each version, and merges them as the run does.

#include <memory>
#include <optional>

#include "tandem/model/lora.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/policy/rank.h"
#include "tandem/pull/passing_source.h"
#include "tandem/worker/welcome.h"

namespace tandem::worker {

/// Ownership  owns both copies and, under adapters, W0 of the matrices that they change; uses the rank, its memory and its groups.
/// Threads    fetch on any one thread; swap and in_use on another, never during a fetch; stop on any.
/// Blocking   fetch, at most the deadline twice.
/// Errors     fetch: PeerError where weights do not come. The others: UserError if there is no memory.
class Weights {
 public:
  /// Nothing is fetched yet. `lora`: of the run; rank 0, if it trains the whole model.
  Weights(const model::ModelConfig& config, const model::LoraOptions& lora, const Welcome& welcome, policy::Rank& rank,
          const pull::PassingOptions& options);

  const model::ModelOnRank& in_use() const { return *in_use_; }
  /// Fills the copy that is not in use. If what came is not whole, it is of no use before another fetch.
  pull::Fetched fetch(PolicyVersion version);
  /// As pull::WeightSource::stop.
  void stop();
  /// What fetch filled is in use from now on.
  void swap() { in_use_.swap(next_); }

 private:
  bool fetch_base();

  const model::LoraOptions lora_;
  policy::Rank& rank_;
  std::unique_ptr<model::ModelOnRank> in_use_, next_;
  pull::PassingSource model_;                             // the weights, or those under the adapters
  std::optional<pull::PassingSource> adapters_;
  std::optional<model::MergedAdapters> merged_;   // once the weights under them are here
};

}  // namespace tandem::worker
