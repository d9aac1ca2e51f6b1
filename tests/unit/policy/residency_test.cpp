// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/residency.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tandem/base/error.h"

namespace tandem::policy {
namespace {

using planner::Resident;
using planner::StageKind;

// Parts that write down what becomes of them.
class Diary {
 public:
  void add(policy::Residency& residency, Resident what, const std::string& name, bool brought_by_switch = false) {
    away_[name] = false;
    residency.add({what, [=, this] { return away_[name]; },
                   [=, this] {
                     away_[name] = true;
                     text += " -" + name;
                     return int64_t{1};
                   },
                   brought_by_switch ? std::function<int64_t()>() : [=, this] {
                     away_[name] = false;
                     text += " +" + name;
                     return int64_t{10};
                   }});
  }
  void bring(const std::string& name) { away_[name] = false; }
  std::string text;

 private:
  std::map<std::string, bool> away_;
};

class StepTest : public testing::Test {
 protected:
  StepTest() {
    diary_.add(residency_, Resident::kGradients, "grads");
    diary_.add(residency_, Resident::kOptimizer, "optimizer");
    diary_.add(residency_, Resident::kKvCache, "cache", true);
    diary_.add(residency_, Resident::kReference, "reference");
    diary_.add(residency_, Resident::kRewardModel, "reward");
  }
  std::string enter(StageKind kind) {
    diary_.text.clear();
    (void)residency_.enter(schedule_.stage(kind), [&] { diary_.text += " saved"; });
    return diary_.text;
  }

  policy::Residency residency_;
  Diary diary_;
  planner::Schedule schedule_ = planner::schedule_for({.placement = planner::placement_of(planner::PlacementKind::kColocated, 1, 1),
                                                       .reference = true,
                                                       .old_logprob = true,
                                                       .reward_stage = true});
};

TEST_F(StepTest, NothingLeavesThatTheNextStageWithANeedWouldBringBack) {
  EXPECT_EQ(enter(StageKind::kSwitch), " saved -grads -optimizer -cache -reference -reward");
  diary_.bring("cache");
  EXPECT_EQ(enter(StageKind::kRollout), "");
  EXPECT_EQ(enter(StageKind::kReward), " -cache +reward");
  EXPECT_EQ(enter(StageKind::kReference), " -reward +reference") << "and the optimizer stays away";
  EXPECT_EQ(enter(StageKind::kOldLogprob), " -reference");
  EXPECT_EQ(enter(StageKind::kAdvantage), "") << "it needs nothing, so it frees nothing";
  EXPECT_EQ(enter(StageKind::kUpdate), " saved +grads +optimizer");
  EXPECT_EQ(enter(StageKind::kSwitch), " saved -grads -optimizer");
}

TEST_F(StepTest, WhatIsThereStaysAndBytesAreCounted) {
  const auto nothing = [] {};
  EXPECT_EQ(residency_.enter(schedule_.stage(StageKind::kUpdate), nothing), 3) << "cache, reference and reward model leave";
  EXPECT_EQ(residency_.enter(schedule_.stage(StageKind::kUpdate), nothing), 0);
  EXPECT_EQ(residency_.enter(schedule_.stage(StageKind::kReference), nothing), 12) << "two leave, one comes";
}

TEST_F(StepTest, ACacheThatNoSwitchMadeIsABug) {
  (void)enter(StageKind::kUpdate);
  EXPECT_THROW(enter(StageKind::kRollout), InternalError);
}

TEST(Schedule, UnderAdaptersTheReferenceNeedsTheWeightsOfTraining) {
  const auto schedule = planner::schedule_for({.placement = planner::placement_of(planner::PlacementKind::kColocated, 1, 1),
                                               .reference = true,
                                               .start_is_reference = true});
  EXPECT_EQ(schedule.stage(StageKind::kReference).needs, std::vector{Resident::kTrainWeights});
  EXPECT_THROW(schedule.stage(StageKind::kReward), InternalError);
}

}  // namespace
}  // namespace tandem::policy
