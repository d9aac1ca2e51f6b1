// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one step leaves behind: its metrics and its samples.

#include "tandem/runtime/stage/stages.h"

namespace tandem::runtime {

/// What share of the step each rank waited for others: idle/rank_N. Not where it is alone. Call it behind record_step. Collective.
void record_idle(comm::Group& world, double idle_s, monitor::Recorder& recorder);

/// What this rank did.
struct StageSpan {
  std::string name;
  double begin_s, end_s;  ///< by now_s() of rank 0
  double waited_s;        ///< of it, for other ranks
};
/// On rank 0 the spans of all ranks, each in a track of its rank. Collective.
void record_spans(comm::Group& world, const std::vector<StageSpan>& mine, monitor::Recorder& recorder);

/// Metrics of a step whose stages have ended, but for memory and start skew; its samples into the store. Collective.
void record_step(const StepData& step, const Roles& roles);

/// Tokens a second of a step, and the share of each device. Every rank of a run has one, whatever it does in a step.
void record_throughput(monitor::Recorder& recorder, double tokens_per_s, int num_devices);

}  // namespace tandem::runtime
