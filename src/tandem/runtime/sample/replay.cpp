// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tandem/data/sample_store.h"
#include "tandem/runtime/sample/sample_source.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::runtime {
namespace {

class Replay final : public SampleSource {
 public:
  Replay(const std::string& run_dir, int64_t steps, const policy::Ranks& ranks, BatchRows& bodies, StopRequested stop);

  std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) override;
  void give_back(const data::Batch& batch) override { bodies_.drop(batch.groups); }
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

Replay::Replay(const std::string& run_dir, int64_t steps, const policy::Ranks& ranks, BatchRows& bodies, StopRequested stop)
    : reader_(run_dir + "/samples.sqlite"), ranks_(ranks), bodies_(bodies), stop_(std::move(stop)) {
  const std::vector<data::StepId> whole = reader_.whole_steps();
  int64_t has = 0;  // steps from the first on
  while (has < std::ssize(whole) && value(whole[static_cast<size_t>(has)]) == has + 1) ++has;
  if (has >= steps) return;
  const std::vector<data::StepSummary> all = reader_.steps();
  const bool is_thinned = std::ranges::find(all, data::StepId{has + 1}, &data::StepSummary::step) != all.end();
  throw UserError("--replay " + run_dir,
                  join_text("lacks the ", is_thinned ? "tokens" : "samples", " of step ", has + 1, ", and run.steps is ", steps),
                  join_text(has > 0 ? join_text("--steps ", has, " at most") : std::string("another run"),
                            is_thinned ? "; run.samples_steps=0 keeps the tokens of all steps" : ""));
}

std::optional<data::Batch> Replay::next_batch(data::StepId step, data::PolicyVersion version) {
  if (ranks_.stop_agreed(stop_)) return std::nullopt;
  data::Batch batch;
  fail_alike(ranks_.world, [&] { batch = reader_.batch(step); });
  batch.version = version;
  bodies_.keep_everywhere(batch.groups);
  return batch;
}

}  // namespace

std::unique_ptr<SampleSource> make_replay(const std::string& run_dir, int64_t steps, const policy::Ranks& ranks, BatchRows& bodies,
                                          StopRequested stop) {
  return std::make_unique<Replay>(run_dir, steps, ranks, bodies, std::move(stop));
}

}  // namespace tandem::runtime
