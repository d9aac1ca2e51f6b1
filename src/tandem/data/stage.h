// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stages that read the samples of one batch, in the order of a step: under which name a reader takes it from the queue. What a run goes
// through is planner/schedule.h:Stage; it takes each batch once, as kTrain.

namespace tandem::data {

enum class Stage { kReference, kValue, kOldLogprob, kTrain };

inline const char* stage_name(Stage stage) {
  constexpr const char* kNames[] = {"reference", "value", "old_logprob", "train"};
  return kNames[static_cast<int>(stage)];
}

}  // namespace tandem::data
