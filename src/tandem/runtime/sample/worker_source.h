// SPDX-License-Identifier: Apache-2.0
#pragma once
// Batches that workers generate: processes that are no ranks of the run (worker/worker.h). The first rank has the door through which they
// reach it; every rank publishes the weights that it has for them.
//
//   takes     heads of a batch, on the first rank, and their bodies from where they were made
//   gives     both to the ranks that train (batch_rows.h)
//   waits for workers, at most workers.wait_s

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tandem/policy/actor.h"
#include "tandem/reshard/pull/weight_server.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/runtime/sample/sample_source.h"
#include "tandem/runtime/sample/worker_door.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::runtime {

struct WorkerParts {
  const config::RunConfig& config;
  const policy::Ranks& ranks;
  const policy::Actor& actor;
  const serve::PromptStream& prompts;  ///< asked by another thread, on the first rank; by nobody else meanwhile
  BatchRows& bodies;
  std::string model_dir;               ///< of the start
  int64_t max_context_tokens;
  StopRequested stop;
  std::function<void(int64_t samples, int64_t tokens)> tell;  ///< hears, again and again, what a batch has by now; may be empty
};

/// Ownership  owns the door and what this rank publishes.
/// Errors     StepFailed where no worker comes, and for what failed with one; the queue keeps what it had.
class WorkerSource final : public SampleSource {
 public:
  /// Collective.
  explicit WorkerSource(const WorkerParts& parts);

  std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) override;
  bool accept(const data::Batch& scored) override;
  void give_back(const data::Batch& batch) override;
  void run_ahead() override;
  void meet() override {}
  std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) override;
  void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) override;
  Generation* generation() override { return nullptr; }
  void record(monitor::Recorder& recorder) override;
  SourceState state() override;
  void restore(SourceState state) override;

 private:
  std::exception_ptr fault();
  worker::Welcome welcome() const;

  WorkerParts parts_;
  std::optional<reshard::WeightServer> weights_;
  std::vector<reshard::WeightHolder> holders_;  // on the first rank: of all ranks
  std::optional<WorkerDoor> door_;              // on the first rank
  int64_t tokens_ = 0;                          // of batches since the last record
  double recorded_s_ = 0;
};

}  // namespace tandem::runtime
