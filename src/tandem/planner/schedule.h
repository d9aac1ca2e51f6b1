// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule is data: which roles there are, which stages each step runs, on which ranks, and after what.
// config/layouts.h:schedule_of makes it from the options. The loop of a rank (runtime/rl_run.cpp:run) executes it through interpret.h.
//
// Rollout is a stream beside the steps: `rollout` ends when batch k is ready, and `switch` gives the stream new weights. Where the
// stream may go on while others train, that stretch is a stage of its own, `ahead`. It ends by the number of groups that are finished, and
// never asks whether training is done.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/planner/placement.h"

namespace tandem::planner {

/// What a stage may find on the device.
enum class Resident {
  kTrainWeights, kGradients, kOptimizer, kRolloutWeights, kKvCache, kReference, kRewardModel,
  kCriticWeights, kCriticGradients, kCriticOptimizer
};
enum class StageKind {
  kRollout,     ///< generates until batch k is ready
  kReplay,      ///< reads batch k of an earlier run instead
  kReward,      ///< scores the batch with a reward model
  kReference,   ///< log-probabilities under the reference
  kOldLogprob,  ///< log-probabilities before the update, computed anew
  kValues,      ///< what the critic expects from each token on
  kAdvantage,   ///< scores to advantages
  kUpdateCritic,  ///< the critic learns what it should have said
  kUpdate,      ///< loss, gradient, optimizer of the actor
  kAhead,       ///< generates beside the update, until a batch of groups is finished, or none runs and the rule lets none start
  kMeet,        ///< ranks that trained and ranks that generated hear of each other
  kSwitch,      ///< the update is committed, and rollout gets its weights
};

/// What stages hand to each other. All but the weights are of one step.
enum class Field {
  kWeights, kBatch, kScores, kReferenceLogprobs, kOldLogprobs, kValues, kAdvantages, kCriticUpdate, kUpdate, kAhead, kMeeting
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
  RankRange ranks;               ///< those that take part; they share a communicator: the world, or policy/ranks.h:side
  std::vector<After> after;
  std::vector<Resident> needs;   ///< must be on the device while it runs; empty: it computes nothing there
  std::vector<Field> reads, fills;
};

/// Stages `first` to `last` of a step run again until the batch is complete: `most` times in a step, or fewer.
struct Repeat {
  int first = 0, last = 0;
  int64_t most = 1;
};

/// A rank runs its stages one after the other: step by step, each step in the order of the list.
struct Schedule {
  std::string name;
  int64_t staleness = 0;         ///< updates a sample may lag; 0 generates each batch under the weights that train on it
  std::vector<std::string> roles;  ///< that stages name by their place here
  std::vector<Stage> stages;
  std::optional<Repeat> repeat = {};  ///< where groups without spread are replaced once a stage has scored them

  /// The first of this kind. Errors: InternalError if there is none.
  const Stage& stage(StageKind kind) const;
  bool has(StageKind kind) const;
};

struct ScheduleNeeds {
  Placement placement;
  int64_t staleness = 0;
  bool replay = false;           ///< batches come from an earlier run
  bool reference = false;        ///< the loss or the rewards have a KL term
  bool rewards_read_logprobs = false;  ///< tokens are rewarded by log-probabilities, so that advantages wait for them
  bool old_logprob = false;      ///< old log-probabilities are computed anew instead of skipped
  bool reward_stage = false;     ///< a reward model scores the batch, instead of each group beside generation
  bool critic = false;           ///< advantages come from a critic's values
  bool start_is_reference = false;  ///< adapters are trained, and the reference is the model under them
  int64_t most_rounds = 1;       ///< with reward_stage: a batch is generated and scored so often at most, until its groups have spread
};

/// The schedule of a run, checked.
Schedule schedule_for(const ScheduleNeeds& needs);

/// Errors: UserError for a value that could not run to its end: a cycle, named; a stage that reads what no stage before it fills; rollout
/// that may run further ahead than the staleness says; an edge between stages that share no rank; a repeat that would train twice, or that
/// some of its ranks would not hear of.
void check(const Schedule& schedule);

/// The schedule as one line, for logs.
std::string to_text(const Schedule& schedule);

}  // namespace tandem::planner
