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
