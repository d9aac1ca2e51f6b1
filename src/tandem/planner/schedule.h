// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule is data: which roles there are, which stages each step runs and in what order, and how far rollout may run
// ahead of training. The runtime interprets this value.

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::planner {

enum class RoleKind { kActor, kReference, kRewardModel };
/// What a stage may find on the device.
enum class Resident { kTrainWeights, kGradients, kOptimizer, kRolloutWeights, kKvCache, kReference, kRewardModel };
enum class StageKind { kRollout, kReward, kReference, kOldLogprob, kAdvantage, kUpdate, kSwitch };

struct Role {
  RoleKind kind;
  std::string name;
  bool trained;
};

struct Stage {
  StageKind kind;
  std::string name;              ///< also the metric time/<name>_s and the span in the trace
  int role;                      ///< index into roles
  std::vector<int> after;        ///< stages of the same step that must have ended
  std::vector<Resident> needs;   ///< must be on the device while it runs; empty: it computes nothing there
};

/// Colocated: all roles share every rank, so stages run one after the other in list order.
struct Schedule {
  std::string name;
  int64_t staleness = 0;         ///< updates a sample may lag; 0 generates each batch under the weights that train on it
  std::vector<Role> roles;
  std::vector<Stage> stages;

  /// The first of this kind. Errors: InternalError if there is none.
  const Stage& stage(StageKind kind) const;
};

struct ScheduleNeeds {
  bool reference = false;        ///< the loss has a KL term
  bool old_logprob = false;      ///< old log-probabilities are computed anew instead of skipped
  bool reward_stage = false;     ///< a reward model scores the batch, instead of each group beside generation
  bool start_is_reference = false;  ///< adapters are trained, and the reference is the model under them
};

/// Generate, train, switch; each batch under the weights before its update.
Schedule sync_schedule(const ScheduleNeeds& needs);
/// The same stages; rollout stops as soon as a batch is ready and its unfinished sequences go on after the switch.
Schedule stale_schedule(const ScheduleNeeds& needs, int64_t staleness);
/// The schedule as one line a stage, for logs and `tandem config`.
std::string to_text(const Schedule& schedule);

}  // namespace tandem::planner
