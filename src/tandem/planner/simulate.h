// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine of interpret.h under a virtual clock: what a schedule takes, from what its stages took. Generation is simulated token by token,
// under the staleness rule itself (queue/admission.h).

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tandem/planner/schedule.h"
#include "tandem/queue/admission.h"

namespace tandem::planner {

/// What a run generates.
struct Workload {
  queue::StalenessRule rule;
  int64_t group_size = 1;
  std::vector<int64_t> lengths;   ///< sample i of the run has lengths[i modulo their number] tokens
  int64_t max_running = 1;        ///< sequences of a replica at a time
};

/// Which replicas generate, and how they meet.
struct Replicas {
  int64_t beside_training = 0;    ///< that stop while their ranks train
  int64_t alone = 0;              ///< that never do; 0: all are beside training
  bool is_free = false;           ///< those that are alone never stop at all
  int64_t round_steps = 8;        ///< token steps between two exchanges, where they do not stop for a clock
};

/// What was measured.
struct Costs {
  std::function<double(int64_t rows)> token_step_s;  ///< of a replica that runs so many sequences
  std::map<std::string, double> stage_s;             ///< of each stage but rollout and ahead, by name
  double between_s = 0;                              ///< of a step, outside its stages
};

/// Of the last steps that were asked for.
struct Simulated {
  double step_s = 0;                    ///< mean
  std::vector<double> generating_share; ///< of each replica, those beside training first: of the time, how much it generates
  std::vector<std::string> order;       ///< "train 3": stages in the order in which they end
};

/// `steps` steps, of which the last `counted` are measured. Errors: InternalError for a workload that comes to a stop.
Simulated simulate(const Schedule& schedule, const Workload& workload, const Replicas& replicas, const Costs& costs, int64_t steps,
                   int64_t counted);

}  // namespace tandem::planner
