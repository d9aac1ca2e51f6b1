// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/schedule.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::planner {
namespace {

// docs/design/offload.md
std::vector<Resident> residents_of(StageKind kind) {
  using enum Resident;
  switch (kind) {
    case StageKind::kRollout:
    case StageKind::kAhead: return {kRolloutWeights, kKvCache};
    case StageKind::kReward: return {kRewardModel};
    case StageKind::kReference: return {kReference};
    case StageKind::kValues: return {kCriticWeights};
    case StageKind::kUpdateCritic: return {kCriticWeights, kCriticGradients, kCriticOptimizer};
    case StageKind::kOldLogprob:
    case StageKind::kSwitch: return {kTrainWeights};
    case StageKind::kUpdate: return {kTrainWeights, kGradients, kOptimizer};
    case StageKind::kReplay:
    case StageKind::kAdvantage:
    case StageKind::kMeet: return {};
  }
  return {};
}

// Whose stage it is.
int role_of(StageKind kind) {
  switch (kind) {
    case StageKind::kReward: return 1;
    case StageKind::kReference: return 2;
    case StageKind::kValues:
    case StageKind::kUpdateCritic: return 3;
    default: return 0;
  }
}

RankRange all_ranks(const Placement& p) {
  const int first = std::min(p.train.first, p.rollout.first);
  return {first, std::max(p.train.first + p.train.count, p.rollout.first + p.rollout.count) - first};
}

// Builds the list; stages are named by their place in it.
class Builder {
 public:
  explicit Builder(const ScheduleNeeds& needs) : needs_(needs), all_(all_ranks(needs.placement)) {
    schedule_.staleness = needs.staleness;
    schedule_.roles = {"actor", "reward_model", "reference", "critic"};  // as role_of has them
  }

  Schedule build() {
    const Placement& p = needs_.placement;
    const bool ahead_of_training = p.has_sides() && needs_.staleness > 0 && !needs_.replay;
    const char* of_sides = p.kind == PlacementKind::kMixed ? "mixed stale" : "split stale";
    schedule_.name = needs_.replay ? "replay" : ahead_of_training ? of_sides : needs_.staleness > 0 ? "stale" : "sync";
    const int batch = needs_.replay ? add(StageKind::kReplay, "replay", all_, {}, {{}, {Field::kBatch, Field::kScores}}) : add_rollout();
    int scores = batch;
    if (needs_.reward_stage && !needs_.replay)
      scores = add(StageKind::kReward, "reward", all_, {{batch}}, {{Field::kBatch}, {Field::kScores}});
    if (scores != batch && needs_.most_rounds > 1) schedule_.repeat = {batch, scores, needs_.most_rounds};
    std::vector<After> before_update, before_advantage;
    std::vector<Field> reads = {Field::kAdvantages}, advantage_reads = {Field::kScores};
    if (needs_.reference) {
      before_update.push_back(
          {add(StageKind::kReference, "reference", p.train, {{batch}}, {{Field::kBatch}, {Field::kReferenceLogprobs}})});
      if (needs_.start_is_reference) schedule_.stages.back().needs = {Resident::kTrainWeights};
      reads.push_back(Field::kReferenceLogprobs);
    }
    if (needs_.old_logprob) {
      before_update.push_back({add(StageKind::kOldLogprob, "old_logprob", p.train, {{batch}}, {{Field::kBatch}, {Field::kOldLogprobs}})});
      reads.push_back(Field::kOldLogprobs);
    }
    if (needs_.rewards_read_logprobs) {
      before_advantage = std::exchange(before_update, {});
      advantage_reads.insert(advantage_reads.end(), reads.begin() + 1, reads.end());
    }
    if (needs_.critic) {
      before_advantage.push_back({add(StageKind::kValues, "values", p.train, {{batch}}, {{Field::kBatch}, {Field::kValues}})});
      advantage_reads.push_back(Field::kValues);
    }
    if (before_advantage.empty() || scores != batch) before_advantage.push_back({scores});
    const int advantage =
        add(StageKind::kAdvantage, "advantage", p.train, before_advantage, {advantage_reads, {Field::kAdvantages}});
    before_update.push_back({advantage});
    std::vector<After> before_meeting;
    std::vector<Field> news = {Field::kUpdate};
    if (needs_.critic) {
      before_meeting.push_back({add(StageKind::kUpdateCritic, "train_critic", p.train, {{advantage}},
                                    {{Field::kValues, Field::kAdvantages}, {Field::kCriticUpdate}})});
      news.push_back(Field::kCriticUpdate);
    }
    before_meeting.push_back({add(StageKind::kUpdate, "train", p.train, before_update, {reads, {Field::kUpdate}})});
    if (ahead_of_training) {
      before_meeting.push_back({add(StageKind::kAhead, "ahead", p.generators(), {{batch}}, {{Field::kBatch}, {Field::kAhead}})});
      news.push_back(Field::kAhead);
    }
    const int meeting = add(StageKind::kMeet, "meet", all_, before_meeting, {news, {Field::kMeeting}});
    const int weights = add(StageKind::kSwitch, "switch", all_, {{meeting}}, {{Field::kMeeting}, {Field::kWeights}});
    schedule_.stages[static_cast<size_t>(batch)].after = {{weights, 1}};
    return std::move(schedule_);
  }

 private:
  struct Fields {
    std::vector<Field> reads, fills;
  };
  int add(StageKind kind, const char* name, RankRange ranks, std::vector<After> after, Fields fields) {
    schedule_.stages.push_back({kind, name, role_of(kind), ranks, std::move(after), residents_of(kind), fields.reads, fields.fills});
    return static_cast<int>(schedule_.stages.size()) - 1;
  }
  int add_rollout() {
    std::vector<Field> fills = {Field::kBatch};
    if (!needs_.reward_stage) fills.push_back(Field::kScores);
    return add(StageKind::kRollout, "rollout", all_, {}, {{Field::kWeights}, fills});
  }

  const ScheduleNeeds& needs_;
  const RankRange all_;
  Schedule schedule_;
};

}  // namespace

Schedule schedule_for(const ScheduleNeeds& needs) {
  TANDEM_CHECK(needs.staleness >= 0, "staleness ", needs.staleness);
  TANDEM_CHECK(needs.most_rounds >= 1, needs.most_rounds, " rounds");
  Schedule schedule = Builder(needs).build();
  check(schedule);
  return schedule;
}

const Stage& Schedule::stage(StageKind kind) const {
  const auto found = std::ranges::find(stages, kind, &Stage::kind);
  TANDEM_CHECK(found != stages.end(), name, " has no such stage");
  return *found;
}

bool Schedule::has(StageKind kind) const { return std::ranges::find(stages, kind, &Stage::kind) != stages.end(); }

std::string to_text(const Schedule& schedule) {
  std::string text = join_text(schedule.name, " (staleness ", schedule.staleness, "):");
  for (const Stage& stage : schedule.stages) text += " " + schedule.roles[static_cast<size_t>(stage.role)] + "." + stage.name;
  return text;
}

}  // namespace tandem::planner
