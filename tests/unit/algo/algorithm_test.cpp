// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/algorithm.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"

namespace tandem::algo {
namespace {

TEST(Algorithm, EveryNamedOneIsValid) {
  for (const std::string& name : algorithm_names()) {
    Options options = named_algorithm(name);
    EXPECT_EQ(options.name, name);
    OptionList list;
    describe(list, options);
    for (const OptionEntry& entry : list.entries) check_option(entry, name);
    algorithm_of(options);
  }
}

TEST(Algorithm, DapoRaisesTheUpperClipAlone) {
  const Algorithm dapo = algorithm_of(named_algorithm("dapo"));
  EXPECT_EQ(dapo.clip.low, 0.2);
  EXPECT_EQ(dapo.clip.high, 0.28);
  EXPECT_EQ(dapo.aggregation, Aggregation::kTokenMean);
}

TEST(Algorithm, AutoMasksOffPolicySequencesForOlderSamplesAlone) {
  for (const std::string& name : algorithm_names()) {
    const Options options = named_algorithm(name);
    EXPECT_EQ(resolved_correction(options, Corrects::kNot).correction, "none");
    const Options weighs = resolved_correction(options, Corrects::kByWeights);
    const Options masks = resolved_correction(options, Corrects::kByWeightsAndMask);
    EXPECT_EQ(weighs.correction, "token");
    EXPECT_EQ(weighs.off_policy_delta, 0);
    EXPECT_EQ(masks.correction, "token");
    EXPECT_EQ(masks.off_policy_delta, name == "gmpo" ? 0 : 0.1);
  }
}

TEST(Algorithm, ADualClipThatTakesAFreshSamplesGradientIsRefused) {
  for (const double bound : {0.5, 1.0}) {
    Options o;
    o.clip_dual = bound;
    EXPECT_THROW((void)algorithm_of(o), UserError) << bound;
  }
  Options none;
  none.clip_dual = 0;
  EXPECT_NO_THROW((void)algorithm_of(none));
}

TEST(Algorithm, AnUnknownNameGetsTheNearest) {
  try {
    named_algorithm("dr_grp");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'dr_grpo'"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::algo
