// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one step leaves behind: its metrics and its samples.

#include "tandem/algo/gap.h"
#include "tandem/runtime/stage/stages.h"

namespace tandem::runtime {

/// What share of the step each rank waited for others: idle/rank_N. Not where it is alone. Call it behind record_step. Collective.
void record_idle(comm::Group& world, double idle_s, monitor::Recorder& recorder);

/// Where no row of a batch is fresh: rows of groups that wait for a later one and are, wholly sampled by the weights that the update starts
/// from. At most 8, and as many tokens as the pass of a micro-batch; on one replica that trains, none on the others, and none anywhere
/// where no such group is finished. Collective over the world.
std::vector<train::Row> fresh_beyond(const StepData& step, const Roles& roles);
/// Between rollout and training, on these rows by the current weights. Collective over the ranks that train.
algo::GapSums gap_of(const std::vector<train::Row>& rows, const Roles& roles);

/// What this rank did.
struct StageSpan {
  std::string name;
  double begin_s, end_s;  ///< by now_s() of rank 0
  double waited_s;        ///< of it, for other ranks
};
/// On rank 0 the spans of all ranks, each in a track of its rank. Collective.
void record_spans(comm::Group& world, const std::vector<StageSpan>& mine, monitor::Recorder& recorder);

/// Of the scores of a batch: their mean, their deviation, and the standard error of the mean.
struct BatchScores {
  double mean, deviation, error;
};
BatchScores scores_of(const data::Batch& batch);

/// Metrics of a step whose stages have ended, but for memory and start skew; its samples into the store. Collective.
void record_step(const StepData& step, const Roles& roles);

/// Tokens a second of a step, and the share of each device. Every rank of a run has one, whatever it does in a step.
void record_throughput(monitor::Recorder& recorder, double tokens_per_s, int num_devices);

}  // namespace tandem::runtime
