// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/replay.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::runtime {

Replay::Replay(const std::string& run_dir, int64_t steps, const policy::Ranks& ranks, BatchRows& bodies, StopRequested stop)
    : reader_(run_dir + "/samples.sqlite"), ranks_(ranks), bodies_(bodies), stop_(std::move(stop)) {
  if (const auto has = std::ssize(reader_.steps()); has < steps)
    throw UserError("--replay " + run_dir, join_text("has the samples of ", has, " steps, run.steps is ", steps),
                    join_text("--steps ", has, " at most"));
}

std::optional<data::Batch> Replay::next_batch(data::StepId step, data::PolicyVersion version) {
  if (ranks_.stop_agreed(stop_)) return std::nullopt;
  data::Batch batch;
  fail_alike(ranks_.world, [&] { batch = reader_.batch(step); });
  batch.version = version;
  bodies_.keep_everywhere(batch.groups);
  return batch;
}

bool Replay::accept(const data::Batch&) {
  TANDEM_CHECK(false, "a replay scores nothing");
  return true;
}

void Replay::run_ahead() { TANDEM_CHECK(false, "a replay generates nothing"); }

}  // namespace tandem::runtime
