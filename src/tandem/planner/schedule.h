// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule is data: which roles there are, which stages each step runs, on which ranks, and after what. The runtime executes
// this value through interpret.h.
//
// Rollout is a stream beside the steps: `rollout` ends when batch k is ready, and `switch` gives the stream new weights. Where the
// stream may go on while others train, that stretch is a stage of its own, `ahead`, which ends at a point that no clock decides.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/planner/placement.h"

namespace tandem::planner {

enum class RoleKind { kActor, kReference, kRewardModel };
/// What a stage may find on the device.
enum class Resident { kTrainWeights, kGradients, kOptimizer, kRolloutWeights, kKvCache, kReference, kRewardModel };
enum class StageKind {
  kRollout,     ///< generates until batch k is ready
  kReplay,      ///< reads batch k of an earlier run instead
  kReward,      ///< scores the batch with a reward model
  kReference,   ///< log-probabilities under the reference
  kOldLogprob,  ///< log-probabilities before the update, computed anew
  kAdvantage,   ///< scores to advantages
  kUpdate,      ///< loss, gradient, optimizer
  kAhead,       ///< generates beside the update, until batch k + 1 could be formed or the staleness rule stops it
  kMeet,        ///< ranks that trained and ranks that generated hear of each other
  kSwitch,      ///< the update is committed, and rollout gets its weights
};

/// What stages hand to each other. All but the weights are of one step.
enum class Field { kWeights, kBatch, kScores, kReferenceLogprobs, kOldLogprobs, kAdvantages, kUpdate, kAhead, kMeeting };

struct Role {
  RoleKind kind;
  std::string name;
  bool trained;
};

/// Stage `stage` of `steps_back` steps ago must have ended. What lies before a run's first step has.
struct After {
  int stage;
  int64_t steps_back = 0;
};

struct Stage {
  StageKind kind;
  std::string name;              ///< also the metric time/<name>_s and the span in the trace
  int role;                      ///< index into roles
  RankRange ranks;               ///< those that take part; they share a communicator
  std::vector<After> after;
  std::vector<Resident> needs;   ///< must be on the device while it runs; empty: it computes nothing there
  std::vector<Field> reads, fills;
};

/// A rank runs its stages one after the other: step by step, each step in the order of the list.
struct Schedule {
  std::string name;
  int64_t staleness = 0;         ///< updates a sample may lag; 0 generates each batch under the weights that train on it
  std::vector<Role> roles;
  std::vector<Stage> stages;

  /// The first of this kind. Errors: InternalError if there is none.
  const Stage& stage(StageKind kind) const;
  bool has(StageKind kind) const;
};

struct ScheduleNeeds {
  Placement placement;
  int64_t staleness = 0;
  bool replay = false;           ///< batches come from an earlier run
  bool reference = false;        ///< the loss has a KL term
  bool old_logprob = false;      ///< old log-probabilities are computed anew instead of skipped
  bool reward_stage = false;     ///< a reward model scores the batch, instead of each group beside generation
  bool start_is_reference = false;  ///< adapters are trained, and the reference is the model under them
};

/// The schedule of a run, checked.
Schedule schedule_for(const ScheduleNeeds& needs);

/// Errors: UserError for a value that could not run to its end: a cycle, named; a stage that reads what no stage before it fills; rollout
/// that may run further ahead than the staleness says; an edge between stages that share no rank.
void check(const Schedule& schedule);

/// The schedule as one line, for logs.
std::string to_text(const Schedule& schedule);

}  // namespace tandem::planner
