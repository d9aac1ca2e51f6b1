// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one rank of a worker generates with: weights in use, and others beside them, which a fetch fills. Of a run that trains adapters it
// fetches the model under them once, which both share, then the adapters of each version.

#include <memory>
#include <optional>
#include <utility>

#include "tandem/model/lora.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/weight_checksum.h"
#include "tandem/policy/rank.h"
#include "tandem/pull/passing_source.h"
#include "tandem/worker/welcome.h"

namespace tandem::worker {

/// Ownership  owns both copies, or the model and two copies of its adapters; uses the rank, its memory and its groups.
/// Threads    fetch on any one thread; swap and in_use on another, never during a fetch; stop on any.
/// Blocking   fetch, at most the deadline twice.
/// Errors     fetch: PeerError where weights do not come. The others: UserError if there is no memory.
class Weights {
 public:
  /// Nothing is fetched yet. `lora`: of the run; rank 0, if it trains the whole model.
  Weights(const model::ModelConfig& config, const model::LoraOptions& lora, const Welcome& welcome, policy::Rank& rank,
          const pull::PassingOptions& options);

  const model::Decoder& decoder() const { return in_use_.model->decoder(); }
  /// Adapters and all. They stay as they are until the swap after the next: the stream reads them on its own thread.
  const model::ModelParameters& in_use() const { return *in_use_.parameters; }
  /// Of every box of the weights in use (model/weight_checksum.h).
  const std::vector<model::BoxSum>& sums() const { return in_use_.sums; }
  /// Fills the copy that is not in use. If what came is not whole, it is of no use before another fetch.
  pull::Fetched fetch(PolicyVersion version);
  /// As pull::WeightSource::stop.
  void stop();
  /// What fetch filled is in use from now on.
  void swap() { std::swap(in_use_, next_); }

 private:
  struct Copy {
    std::unique_ptr<model::ModelOnRank> model;
    std::unique_ptr<model::Lora> adapters;  // null where the whole model is trained
    std::unique_ptr<model::ModelParameters> parameters;  // of both, where a swap leaves them
    std::vector<model::BoxSum> sums = {};
  };

  Copy in_use_, next_;
  pull::PassingSource model_;                             // the weights, or those under the adapters
  std::optional<pull::PassingSource> adapters_;
  std::vector<model::BoxSum> base_sums_;                  // of the weights under them, once they are here
};

}  // namespace tandem::worker
