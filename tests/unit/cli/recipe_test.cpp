// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "../../odd_files.h"
#include "../../temporary_folder.h"
#include "tandem/base/error.h"
#include "tandem/cli/recipe_arguments.h"
#include "tandem/reward/rule.h"
#include "tandem/config/config.h"
#include "tandem/data/source.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

config::RunConfig parsed(const std::string& arguments) {
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

TEST(Recipe, APipeOrADeviceIsRefusedAtOnce) {
  const test::TemporaryFolder folder("odd_recipe");
  EXPECT_EQ(test::opens_odd_files(folder / "recipe.yaml", [&] { parsed(folder / "recipe.yaml"); }), std::vector<std::string>());
}

TEST(Recipe, EveryFileInConfigsLoadsAndNamesARuleThatExists) {
  ASSERT_GE(recipes().size(), 3);
  for (const std::string& file : recipes()) {
    SCOPED_TRACE(file);
    const config::RunConfig config = config::load_config(file, {});
    EXPECT_EQ(config.run.dir, "runs/" + fs::path(file).stem().string());
    EXPECT_NO_THROW(reward::make_reward(config.reward));
  }
}

TEST(Recipe, ResolvedRecipeReadsBackToTheSameText) {
  const test::TemporaryFolder folder("recipe");
  const fs::path copy = folder / "resolved_recipe.yaml";
  const std::string kStops = R"(["\n\n", 'a\d', "say \"no\"", "a, b", " \r\t\x01"])";
  for (const std::string& file : recipes()) {
    SCOPED_TRACE(file);
    const std::string text = config::to_yaml(config::load_config(
        file, {{"rollout.stop", kStops}, {"data.prompt_template", "{prompt}\t\"\r\\\x1b"}, {"train.lr", "1.25e-7"}}));
    std::ofstream(copy) << text;
    const config::RunConfig again = config::load_config(copy.string(), {});
    EXPECT_EQ(config::to_yaml(again), text);
    EXPECT_EQ(again.rollout.stop, (std::vector<std::string>{"\n\n", "a\\d", "say \"no\"", "a, b", " \r\t\x01"}));
    EXPECT_EQ(again.data.prompt_template, "{prompt}\t\"\r\\\x1b");
  }
}

TEST(Recipe, AResolvedRecipeMarksWhatIsNotTheDefault) {
  const auto line_of = [](const std::vector<config::Setting>& settings, const std::string& name) {
    const std::string text = config::to_yaml(config::load_config("", settings));
    const size_t begin = text.find("  " + name + ": ");
    return begin == std::string::npos ? "none" : text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(line_of({}, "right_at"), "  right_at: 0.5");
  EXPECT_EQ(line_of({{"eval.right_at", "0.5"}}, "right_at"), "  right_at: 0.5") << "set to what it is anyway";
  EXPECT_EQ(line_of({{"eval.right_at", "0.75"}}, "right_at"), "  right_at: 0.75  # default: 0.5");
  EXPECT_EQ(line_of({{"run.dir", "a # b"}}, "dir"), "  dir: \"a # b\"  # default: \"\"");
  EXPECT_EQ(line_of({{"algo.name", "ppo"}}, "name"), "  name: \"ppo\"  # default: \"grpo\"");
  EXPECT_EQ(line_of({{"algo.name", "ppo"}}, "advantage"), "  advantage: \"gae\"") << "what the algorithm brings is its default";
  EXPECT_EQ(line_of({{"algo.name", "ppo"}, {"algo.advantage", "rloo"}}, "advantage"), "  advantage: \"rloo\"  # default: \"gae\"");
}

TEST(Recipe, AValueOfTheWrongShapeNamesFileAndOption) {
  const test::TemporaryFolder folder("recipe");
  const fs::path file = folder / "wrong_shape.yaml";
  for (const auto& [yaml, name] : {std::pair{"rollout:\n  stop: [[a]]\n", "rollout.stop"}, {"rollout:\n  stop: [{a: b}]\n", "rollout.stop"},
                                   {"algo:\n  name: [grpo]\n", "algo.name"}, {"algo:\n  name: {a: b}\n", "algo.name"},
                                   {"run:\n  [steps]: 3\n", "option"}, {"algo: 5\n", "algo"},
                                   {"run:\n  steps: 3\nrun:\n  steps: 4\n", "run.steps stands here a second time"},
                                   {"supervised:\n  logprob_micro_batch_tokens: 5\n", "supervised.logprob_micro_batch_tokens"}}) {
    std::ofstream(file) << yaml;
    const std::string message = refusal(file.string());
    EXPECT_TRUE(message.starts_with(file.string() + ":")) << yaml << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

TEST(Recipe, AListOfPairsMayBeAMapping) {
  const test::TemporaryFolder folder("recipe");
  const fs::path file = folder / "mapping.yaml";
  std::ofstream(file) << "data:\n  mix: {a.jsonl: 2, b.parquet: 1}\n"
                         "reward:\n  by_source:\n    openai/gsm8k: gsm8k(method=flexible)\n    lighteval/MATH: math\n";
  const config::RunConfig config = parsed(file.string());
  EXPECT_EQ(config.data.mix, (std::vector<std::string>{"a.jsonl=2", "b.parquet=1"}));
  EXPECT_EQ(config.reward.by_source, (std::vector<std::string>{"openai/gsm8k=gsm8k(method=flexible)", "lighteval/MATH=math"}));
  std::ofstream(file) << "reward:\n  by_source: {a: [math]}\n";
  EXPECT_NE(refusal(file.string()).find("reward.by_source"), std::string::npos);
}

TEST(Recipe, ASizeThatIsNoneSaysWhatOneIs) {
  EXPECT_EQ(parsed("--max-shard-size 2GB").checkpoint.max_shard_size, "2GB");
  for (const char* wrong : {"5gigs", "0", "GB"}) {
    const std::string message = refusal(std::string("--max-shard-size ") + wrong);
    EXPECT_TRUE(message.starts_with("--max-shard-size")) << message;
    EXPECT_NE(message.find("such as 5GB"), std::string::npos) << message;
  }
}

TEST(Recipe, TheReferenceInDocsIsWhatConfigPrints) {
  std::ifstream in(fs::path(TANDEM_SOURCE_DIR) / "docs/config.md");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  EXPECT_EQ(text, config::option_reference()) << "write it anew: build/release/tandem config > docs/config.md";
}

TEST(Recipe, TheReferenceGivesTheDefaultsOfARecipeThatSaysNothing) {
  const std::string reference = config::option_reference();
  EXPECT_NE(reference.find("| `algo.aggregation` | `\"" + parsed("").algo.aggregation + "\"`"), std::string::npos);
  EXPECT_EQ(reference.find("supervised.reference_micro_batch_tokens"), std::string::npos);
}

TEST(Recipe, StepsOfASupervisedRunAreItsOwn) {
  CLI::App app;
  RecipeArguments recipe(RecipeArguments::kOptional, RecipeArguments::kSupervised);
  recipe.declare(app);
  for (const char* flag : {"--schedule", "--staleness", "--rollout-layout"})
    EXPECT_FALSE(app.get_option_no_throw(flag)) << flag;
  app.parse("--steps 7");
  EXPECT_EQ(recipe.load().supervised.steps, 7);
  EXPECT_EQ(recipe.load().run.steps, config::RunConfig().run.steps);
}

TEST(Recipe, SupervisedStepsBeginWithARateForAPretrainedModel) {
  EXPECT_LE(parsed("").supervised.train.lr, 5e-5);  // TRL: 2e-5, verl: 1e-5
  EXPECT_EQ(parsed(std::string(TANDEM_SOURCE_DIR) + "/configs/quickstart.yaml").supervised.train.lr, 3e-3) << "it starts from nothing";
}

TEST(Recipe, AGroupOfOneIsRefusedUnderEveryAlgorithmThatComparesAGroup) {
  EXPECT_EQ(refusal("--set algo.name=reinforce_pp --set schedule.group_size=1"), "") << "it compares the whole batch";
  EXPECT_EQ(refusal("--set algo.name=remax --set schedule.group_size=1"), "") << "it compares with the greedy answer";
  EXPECT_EQ(refusal("--set algo.name=ppo --set schedule.group_size=1"), "") << "it compares with a critic's values";
  const std::string teacher = " --set model.ref_model_load_path=somewhere";
  EXPECT_EQ(refusal("--set algo.name=distillation --set schedule.group_size=1" + teacher), "") << "it compares nothing";
  for (const std::string& name : algo::algorithm_names()) {
    if (name == "reinforce_pp" || name == "remax" || name == "ppo" || name == "distillation") continue;
    const std::string message = refusal("--set algo.name=" + name + " --set schedule.group_size=1");
    EXPECT_TRUE(message.starts_with("options: schedule.group_size is 1, and algo.advantage ")) << name << ": " << message;
    EXPECT_NE(message.find("(at least 2)"), std::string::npos) << message;
    EXPECT_EQ(refusal("--set algo.name=" + name + " --set schedule.group_size=2"), "");
  }
}

TEST(Recipe, BoundsOfTheScoreAreNoneUnlessTheyAreGiven) {
  const reward::Options plain = parsed("").reward;
  EXPECT_EQ(plain.shaping().of(-1e300), -1e300);
  const data::Shaping shaping = parsed("--set reward.scale=2 --set reward.clip_low=-1 --set reward.clip_high=inf").reward.shaping();
  EXPECT_EQ(shaping.of(-0.75), -1);
  EXPECT_EQ(shaping.of(40), 80);
  const std::string crossed = refusal("--set reward.clip_low=2 --set reward.clip_high=1");
  EXPECT_NE(crossed.find("reward.clip_low is 2, reward.clip_high 1"), std::string::npos) << crossed;
  EXPECT_NE(refusal("--set reward.clip_low=nan").find("a lower bound below the upper one"), std::string::npos);
  EXPECT_NE(refusal("--set reward.scale=0").find("above 0"), std::string::npos);
  EXPECT_THROW(reward::make_rule("number(scale=2)"), UserError) << "it is the whole reward's";
}

TEST(Recipe, StalenessAloneMeansTheStaleSchedule) {
  EXPECT_EQ(parsed("--staleness 2").schedule.kind, "stale");
  EXPECT_EQ(parsed("--staleness 2").staleness(), 2);
  EXPECT_EQ(parsed("--staleness 0").schedule.kind, "sync");
  EXPECT_NE(refusal("--staleness 2 --schedule sync"), "");
  EXPECT_EQ(parsed("--schedule sync").staleness(), 0);
}

TEST(Recipe, NoEvalTurnsOffAllThree) {
  const config::EvalOptions eval = parsed(std::string(TANDEM_SOURCE_DIR) + "/configs/quickstart.yaml --no-eval").eval;
  EXPECT_FALSE(eval.before);
  EXPECT_FALSE(eval.after);
  EXPECT_EQ(eval.every_steps, 0);
}

TEST(Recipe, SetMayBeRepeatedAndTakesOneValueEach) {
  const std::string config = std::string(TANDEM_SOURCE_DIR) + "/configs/quickstart.yaml";
  const config::RunConfig c = parsed("--set run.steps=7 --set train.lr=1e-5 " + config);
  EXPECT_EQ(c.run.steps, 7);
  EXPECT_EQ(c.train.lr, 1e-5);
  EXPECT_EQ(c.data.digits, 3);
  EXPECT_EQ(parsed("--steps 3 --set run.steps=7").run.steps, 7);
}

TEST(Recipe, OfTwoThatSetOneOptionTheLaterOnTheLineCounts) {
  EXPECT_EQ(parsed("--steps 3 --steps 4").run.steps, 4);
  EXPECT_EQ(parsed("--steps=4 --steps 3").run.steps, 3);
  EXPECT_EQ(parsed("--set run.steps=3 --set run.steps=4").run.steps, 4);
  EXPECT_EQ(parsed("--set run.steps=7 --steps 3").run.steps, 3);
  EXPECT_EQ(parsed("--steps 3 --set run.steps=7").run.steps, 7);
  EXPECT_EQ(parsed("--set run.steps=1 --steps 3 --set run.steps=7 --steps 5").run.steps, 5);
  EXPECT_TRUE(parsed("--no-eval --set eval.before=true").eval.before);
  EXPECT_FALSE(parsed("--no-eval --set eval.before=true").eval.after);
  EXPECT_FALSE(parsed("--set eval.before=true --no-eval --no-eval").eval.before);
  EXPECT_FALSE(parsed("--parity --set run.parity=false").run.parity);
  EXPECT_TRUE(parsed("--set run.parity=false --parity --parity").run.parity);
  EXPECT_EQ(parsed("--staleness 2 --staleness 0").schedule.kind, "sync");
  EXPECT_EQ(parsed("--schedule sync --staleness 1 --schedule stale").staleness(), 1);
  EXPECT_EQ(parsed("--set schedule.kind=sync --staleness 2").staleness(), 2);
  EXPECT_NE(refusal("--staleness 2 --set schedule.kind=sync"), "");
  EXPECT_EQ(parsed("--set algo.name=dapo --set algo.name=gspo").algo.name, "gspo");
}

TEST(Recipe, ANameWithoutItsSectionIsAnsweredWithTheFullNames) {
  EXPECT_EQ(refusal("--set lr=1e-5"), "--set: lr names no section (one of train.lr, critic.lr, supervised.lr)");
  EXPECT_EQ(refusal("--set group_size=4"), "--set: group_size names no section (expected schedule.group_size)");
  EXPECT_EQ(refusal("--set stepz=4"), "--set: unknown option stepz (the nearest are run.steps, supervised.steps)");
  EXPECT_NE(refusal("--set train=4").find("train is a section, and no option"), std::string::npos) << refusal("--set train=4");
  const test::TemporaryFolder folder("short_name");
  std::ofstream(folder / "short.yaml") << "run:\n  steps: 3\nlr: 1e-5\n";
  const std::string file = folder / "short.yaml";
  EXPECT_EQ(refusal(file), file + ":3: lr names no section (one of train.lr, critic.lr, supervised.lr)");
}

TEST(Recipe, TheWordsOfAnOptionStandInTheReferenceInHelpAndInTheError) {
  const std::string reference = config::option_reference();
  config::RunConfig config;
  OptionList list;
  describe(list, config);
  int with_words = 0;
  for (const OptionEntry& entry : list.entries) {
    const std::vector<std::string> words = config::allowed_words(entry.ref);
    if (words.empty()) continue;
    ++with_words;
    const size_t at = reference.find("| `" + entry.path + "` |");
    const std::string row = reference.substr(at, reference.find('\n', at) - at), wrong = refusal("--set " + entry.path + "=nonsense");
    for (const std::string& word : words) {
      EXPECT_NE(row.find(word.empty() ? "`\"\"`" : "`" + word + "`", row.rfind("ne of `")), std::string::npos) << row;
      EXPECT_NE(wrong.find(" " + (word.empty() ? "''" : word)), std::string::npos) << wrong;
    }
  }
  EXPECT_GE(with_words, 20);
  for (const std::string& rule : reward::rule_names())
    EXPECT_NE(reference.find(" " + rule + " "), std::string::npos) << rule << ": the rules are words of reward.rule";
  EXPECT_NE(refusal("--set algo.name=grpoo").find("did you mean 'grpo'; expected one of grpo "), std::string::npos);
  EXPECT_TRUE(config::allowed_words(list.entries.front().ref).empty()) << "run.dir takes any";
  CLI::App app;
  RecipeArguments recipe(RecipeArguments::kRequired);
  recipe.declare(app);
  for (const char* shown : {"--schedule sync|stale", "--device auto|cpu|cuda|npu", "--dtype float32|bfloat16"})
    EXPECT_NE(app.help().find(shown), std::string::npos) << shown << app.help();
}

TEST(Recipe, SetsOfAnEvaluationAreAListAMappingOrOneFile) {
  const test::TemporaryFolder folder("eval_sets");
  const auto sets = [&](const std::string& yaml) {
    std::ofstream(folder / "sets.yaml") << "data:\n  eval: " << yaml << "\n";
    std::string text;
    for (const data::EvalSet& set : data::eval_sets(parsed(folder / "sets.yaml").data)) text += set.name + "<" + set.path + "> ";
    return text;
  };
  EXPECT_EQ(sets("{b: x/y.jsonl, a.1: synthetic}"), "b<x/y.jsonl> a.1<synthetic> ");
  EXPECT_EQ(sets("[b=x.jsonl, a=p=q.jsonl]"), "b<x.jsonl> a<p=q.jsonl> ");
  EXPECT_EQ(sets("x.jsonl"), "<x.jsonl> ");
  EXPECT_EQ(sets("date=1/x.jsonl"), "date<1/x.jsonl> ");
  EXPECT_EQ(sets("./date=1/x.jsonl"), "<./date=1/x.jsonl> ");
  EXPECT_EQ(sets("\"\""), "");
  EXPECT_THROW(sets("[a=x, a=y]"), UserError);
  EXPECT_THROW(sets("[x.jsonl, y.jsonl]"), UserError);
  EXPECT_THROW(sets("[a=x, y]"), UserError);
  EXPECT_THROW(sets("['=x']"), UserError);
}

TEST(Recipe, AWrongValueNamesItsFlagAndWhatWouldBeRight) {
  EXPECT_EQ(refusal("--steps abc"), "--steps: run.steps is 'abc' (expected an integer)");
  EXPECT_EQ(refusal("--set train.lrr=1"), "--set: unknown option train.lrr (the nearest is train.lr)");
  EXPECT_EQ(refusal("--set train.leraning_rate=1"), "--set: unknown option train.leraning_rate (the nearest is train.lr)");
  EXPECT_NE(refusal("--set algo.name=gae").find("'gae' is a word of algo.advantage (--set algo.advantage=gae)"), std::string::npos);
  EXPECT_NE(refusal("--set algo.name=clip").find("'clip' is a word of algo.loss (--set algo.loss=clip)"), std::string::npos);
  EXPECT_EQ(refusal("--set train.lr"), "--set: `train.lr` names no option and value (expected section.option=value)");
}

}  // namespace
}  // namespace tandem::cli
