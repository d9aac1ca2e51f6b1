// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "tandem/base/error.h"
#include "tandem/cli/recipe_arguments.h"
#include "tandem/reward/rule.h"
#include "tandem/runtime/recipe/config.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

runtime::RunConfig parsed(const std::string& arguments) {
  CLI::App app;
  RecipeArguments recipe(RecipeArguments::kOptional);
  recipe.declare(app);
  app.parse(arguments);
  return recipe.load();
}

std::string refusal(const std::string& arguments) {
  try {
    parsed(arguments);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

std::vector<std::string> recipes() {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(fs::path(TANDEM_SOURCE_DIR) / "configs"))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path().string());
  return files;
}

TEST(Recipe, EveryFileInConfigsLoadsAndNamesARuleThatExists) {
  ASSERT_GE(recipes().size(), 3);
  for (const std::string& file : recipes()) {
    SCOPED_TRACE(file);
    const runtime::RunConfig config = runtime::load_config(file, {});
    EXPECT_EQ(config.run.dir, "runs/" + fs::path(file).stem().string());
    EXPECT_NO_THROW(reward::make_reward(config.reward));
  }
}

TEST(Recipe, ResolvedRecipeReadsBackToTheSameText) {
  const fs::path copy = fs::temp_directory_path() / "tandem_resolved_recipe.yaml";
  for (const std::string& file : recipes()) {
    SCOPED_TRACE(file);
    const std::string text = runtime::to_yaml(runtime::load_config(file, {{"rollout.stop", "[a,b]"}, {"train.lr", "1.25e-7"}}));
    std::ofstream(copy) << text;
    EXPECT_EQ(runtime::to_yaml(runtime::load_config(copy.string(), {})), text);
  }
  fs::remove(copy);
}

TEST(Recipe, StalenessAloneMeansTheStaleSchedule) {
  EXPECT_EQ(parsed("--staleness 2").schedule.kind, "stale");
  EXPECT_EQ(parsed("--staleness 2").staleness(), 2);
  EXPECT_EQ(parsed("--staleness 0").schedule.kind, "sync");
  EXPECT_NE(refusal("--staleness 2 --schedule sync"), "");
  EXPECT_EQ(parsed("--schedule sync").staleness(), 0);
}

TEST(Recipe, NoEvalTurnsOffAllThree) {
  const runtime::EvalOptions eval = parsed(std::string(TANDEM_SOURCE_DIR) + "/configs/quickstart.yaml --no-eval").eval;
  EXPECT_FALSE(eval.before);
  EXPECT_FALSE(eval.after);
  EXPECT_EQ(eval.every_steps, 0);
}

TEST(Recipe, SetMayBeRepeatedAndTakesOneValueEach) {
  const std::string config = std::string(TANDEM_SOURCE_DIR) + "/configs/quickstart.yaml";
  const runtime::RunConfig c = parsed("--set run.steps=7 --set train.lr=1e-5 " + config);
  EXPECT_EQ(c.run.steps, 7);
  EXPECT_EQ(c.train.lr, 1e-5);
  EXPECT_EQ(c.data.digits, 3);
  EXPECT_EQ(parsed("--steps 3 --set run.steps=7").run.steps, 7);
}

TEST(Recipe, AWrongValueNamesItsFlagAndWhatWouldBeRight) {
  EXPECT_EQ(refusal("--steps abc"), "--steps: run.steps is 'abc' (expected an integer)");
  EXPECT_EQ(refusal("--set train.lrr=1"), "--set: unknown option train.lrr (the nearest is train.lr)");
  EXPECT_EQ(refusal("--set train.lr"), "--set: `train.lr` names no option and value (expected section.option=value)");
}

}  // namespace
}  // namespace tandem::cli
