// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine of interpret.h under a virtual clock: what a schedule takes, from what its stages took. Generation is simulated token by
// token, under the staleness rule itself (queue/admission.h).

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tandem/model/layout.h"
#include "tandem/planner/schedule.h"
#include "tandem/queue/admission.h"

namespace tandem::planner {

/// What a run generates.
struct Workload {
  queue::StalenessRule rule;
  int64_t group_size = 1;
  std::vector<int64_t> lengths;   ///< sample i of the run has lengths[i modulo their number] tokens
  int64_t max_running = 1;        ///< sequences of a replica at a time
  int64_t prompt_tokens = 0;      ///< of each sequence: they count where it is weighed whether a group moves
};

/// Which replicas generate, and how they meet.
struct Replicas {
  Placement placement;
  model::Layout layout;           ///< of the rollout
  bool is_free = false;           ///< those on ranks that never train never stop at all, and groups leave the others if that is quicker
  int64_t round_steps = 8;        ///< token steps between two exchanges, where no clock forms a batch: RunConfig::round_steps
};

/// What was measured.
struct Costs {
  std::function<double(int64_t rows)> token_step_s;  ///< of a replica that runs so many sequences, with its share of prefill
  std::map<std::string, double> stage_s;             ///< of each stage but rollout and ahead, by name
  double between_s = 0;                              ///< of a step, outside its stages
};

/// Of the last steps that were asked for.
struct Simulated {
  double step_s = 0;                    ///< mean
  std::vector<double> generating_share; ///< of each replica: of the time, how much it generates
  std::vector<std::string> order;       ///< "train 3": stages in the order in which they end
};

/// How many steps, and how many of them, the last ones, are measured.
struct Course {
  int64_t steps, counted;
};
/// Errors: InternalError for a workload that comes to a stop.
Simulated simulate(const Schedule& schedule, const Workload& workload, const Replicas& replicas, const Costs& costs, const Course& course);

}  // namespace tandem::planner
