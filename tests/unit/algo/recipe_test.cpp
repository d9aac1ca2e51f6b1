// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/recipe.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"

namespace tandem::algo {
namespace {

TEST(Recipe, EveryNamedOneIsValid) {
  for (const std::string& name : recipe_names()) {
    Options options = named_recipe(name);
    EXPECT_EQ(options.name, name);
    OptionList list;
    describe(list, options);
    for (const OptionEntry& entry : list.entries) check_option(entry, name);
    recipe_of(options);
  }
}

TEST(Recipe, DapoRaisesTheUpperClipAlone) {
  const Recipe dapo = recipe_of(named_recipe("dapo"));
  EXPECT_EQ(dapo.clip.low, 0.2);
  EXPECT_EQ(dapo.clip.high, 0.28);
  EXPECT_EQ(dapo.aggregation, Aggregation::kTokenMean);
}

TEST(Recipe, AnUnknownNameGetsTheNearest) {
  try {
    named_recipe("dr_grp");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'dr_grpo'"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::algo
