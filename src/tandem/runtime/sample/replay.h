// SPDX-License-Identifier: Apache-2.0
#pragma once
// The samples of an earlier run, step by step: `tandem run --replay`.

#include <string>

#include "tandem/data/sample_store.h"
#include "tandem/policy/ranks.h"
#include "tandem/runtime/sample/batch_rows.h"
#include "tandem/runtime/sample/sample_source.h"

namespace tandem::runtime {

/// Errors     UserError if that run has fewer steps than this one.
class Replay final : public SampleSource {
 public:
  Replay(const std::string& run_dir, int64_t steps, const policy::Ranks& ranks, BatchRows& bodies, StopRequested stop);

  std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) override;
  bool accept(const data::Batch& scored) override;
  void give_back(const data::Batch& batch) override { bodies_.drop(batch.groups); }
  Generation* generation() override { return nullptr; }
  void run_ahead() override;
  void meet() override {}
  std::vector<data::GroupId> commit(data::StepId, data::PolicyVersion) override { return {}; }
  void switch_weights(const rollout::SendWeights& send, data::PolicyVersion) override { send(); }
  void record(monitor::Recorder&) override {}
  /// What it was given: a run that rolls out again goes on there.
  SourceState state() override { return kept_; }
  void restore(SourceState state) override { kept_ = std::move(state); }

 private:
  data::SampleReader reader_;
  const policy::Ranks& ranks_;
  BatchRows& bodies_;
  StopRequested stop_;
  SourceState kept_;
};

}  // namespace tandem::runtime
