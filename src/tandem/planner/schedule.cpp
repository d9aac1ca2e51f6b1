// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/schedule.h"

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::planner {
namespace {

// docs/design/offload.md
std::vector<Resident> needs_of(StageKind kind) {
  using enum Resident;
  switch (kind) {
    case StageKind::kRollout: return {kRolloutWeights, kKvCache};
    case StageKind::kReward: return {kRewardModel};
    case StageKind::kReference: return {kReference};
    case StageKind::kOldLogprob: return {kTrainWeights};
    case StageKind::kAdvantage: return {};
    case StageKind::kUpdate: return {kTrainWeights, kGradients, kOptimizer};
    case StageKind::kSwitch: return {kTrainWeights};
  }
  return {};
}

Schedule colocated(std::string name, const ScheduleNeeds& needs, int64_t staleness) {
  Schedule s{std::move(name), staleness, {{RoleKind::kActor, "actor", true}}, {}};
  const auto add = [&](StageKind kind, const char* stage, int role) {
    std::vector<int> after;
    if (!s.stages.empty()) after.push_back(static_cast<int>(s.stages.size()) - 1);
    s.stages.push_back({kind, stage, role, after, needs_of(kind)});
  };
  add(StageKind::kRollout, "rollout", 0);
  const auto add_role = [&](RoleKind kind, const char* name) {
    s.roles.push_back({kind, name, false});
    return static_cast<int>(s.roles.size()) - 1;
  };
  if (needs.reward_stage) add(StageKind::kReward, "reward", add_role(RoleKind::kRewardModel, "reward_model"));
  if (needs.reference) {
    add(StageKind::kReference, "reference", add_role(RoleKind::kReference, "reference"));
    if (needs.start_is_reference) s.stages.back().needs = {Resident::kTrainWeights};
  }
  if (needs.old_logprob) add(StageKind::kOldLogprob, "old_logprob", 0);
  add(StageKind::kAdvantage, "advantage", 0);
  add(StageKind::kUpdate, "train", 0);
  add(StageKind::kSwitch, "switch", 0);
  return s;
}

}  // namespace

Schedule sync_schedule(const ScheduleNeeds& needs) { return colocated("sync", needs, 0); }

Schedule stale_schedule(const ScheduleNeeds& needs, int64_t staleness) {
  TANDEM_CHECK(staleness >= 0, "staleness ", staleness);
  return colocated("stale", needs, staleness);
}

const Stage& Schedule::stage(StageKind kind) const {
  const auto found = std::ranges::find(stages, kind, &Stage::kind);
  TANDEM_CHECK(found != stages.end(), name, " has no such stage");
  return *found;
}

std::string to_text(const Schedule& schedule) {
  std::string text = join_text(schedule.name, " (staleness ", schedule.staleness, "):");
  for (const Stage& stage : schedule.stages) text += " " + schedule.roles[static_cast<size_t>(stage.role)].name + "." + stage.name;
  return text;
}

}  // namespace tandem::planner
