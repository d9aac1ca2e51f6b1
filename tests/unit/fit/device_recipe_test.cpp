// SPDX-License-Identifier: Apache-2.0
// Each recipe of configs/device fits the device that its name says, by the planner. None of them has run on one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/config/layouts.h"
#include "tandem/fit/reckon.h"
#include "tandem/reward/rule.h"
#include "tests/error_text.h"

namespace tandem::fit {
namespace {

namespace fs = std::filesystem;
using Settings = std::vector<config::Setting>;

struct Card {
  const char* suffix;
  int ranks;
  int64_t device_mib, reserve_mib;  // reserve: the driver's context, messages, what allocation leaves unused
};
constexpr Card kCards[] = {{"_8x80gb", 8, 81559, 4096}, {"_80gb", 1, 81559, 4096}, {"_24gb", 1, 24564, 1536}};

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

fs::path folder() { return fs::path(TANDEM_SOURCE_DIR) / "configs/device"; }

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(folder())) all.push_back(entry.path().stem().string());
  std::ranges::sort(all);
  return all;
}

Card card_of(const std::string& name) {
  for (const Card& card : kCards)
    if (name.ends_with(card.suffix)) return card;
  ADD_FAILURE() << name << " names no device";
  return kCards[0];
}

config::RunConfig load(const std::string& name, const Settings& settings = {}) {
  return config::load_config((folder() / (name + ".yaml")).string(), settings);
}

// Qwen/Qwen2.5-7B-Instruct: tests/fixtures/config/qwen2.5-7b.json.
model::ModelConfig model_of(const config::RunConfig& config) {
  std::string name = config.model.path.substr(config.model.path.find('/') + 1);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const fs::path file = fs::path(TANDEM_SOURCE_DIR) / "tests/fixtures/config" / (name.substr(0, name.rfind("-instruct")) + ".json");
  return model::parse_config(nlohmann::json::parse(read(file)), file.string());
}

Reckoned reckoned_of(const config::RunConfig& config) { return reckoned(config, model_of(config)); }

std::string refusal(const std::string& name, const Settings& settings) {
  const config::RunConfig config = load(name, settings);
  return test::error_of([&] { check_budgets(reckoned_of(config), config); });
}

std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / static_cast<double>(1 << 30));
  return text;
}

TEST(DeviceRecipe, EachFitsItsDeviceWithWhatIsKeptInReserve) {
  ASSERT_GE(names().size(), 6u);
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    const Card card = card_of(name);
    const config::RunConfig config = load(name);
    EXPECT_EQ(config.memory.device_mib, card.device_mib - card.reserve_mib);
    EXPECT_EQ(config::planned_ranks(config), card.ranks);
    const Reckoned reckoned = reckoned_of(config);
    std::printf("%s\n%s", name.c_str(), to_text(reckoned, config).c_str());
    EXPECT_NO_THROW(check_budgets(reckoned, config));
    EXPECT_LE(sum_of(reckoned.peak().device), (card.device_mib - card.reserve_mib) << 20);
    EXPECT_EQ(config.memory.host_mib > 0, !reckoned.host.empty());
  }
}

TEST(DeviceRecipe, EachNamesItsDeviceAModelAndARuleThatExists) {
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    EXPECT_NE(read(folder() / (name + ".yaml")).find("\n  device: cuda\n"), std::string::npos);
    const config::RunConfig config = load(name);
    EXPECT_EQ(config.run.dir, "runs/" + name);
    EXPECT_TRUE(config.model.path.starts_with("Qwen/Qwen2.5-"));
    EXPECT_NO_THROW(reward::make_reward(config.reward));
  }
}

TEST(DeviceRecipe, TheTableOfTheGuideHasThesePeaks) {
  const std::string guide = read(fs::path(TANDEM_SOURCE_DIR) / "docs/guide/one_gpu.md");
  for (const std::string& name : names()) {
    const Reckoned reckoned = reckoned_of(load(name));
    const size_t begin = guide.find("| `configs/device/" + name + ".yaml` |");
    ASSERT_NE(begin, std::string::npos) << name;
    const std::string row = guide.substr(begin, guide.find('\n', begin) - begin);
    EXPECT_NE(row.find("| " + gib(sum_of(reckoned.peak().device)) + ", " + reckoned.peak().stage + " |"), std::string::npos)
        << row << "\n" << gib(sum_of(reckoned.peak().device)) << ", " << reckoned.peak().stage;
    EXPECT_TRUE(row.ends_with(reckoned.host.empty() ? "| - |" : "| " + gib(sum_of(reckoned.host)) + " |"))
        << row << "\n" << gib(sum_of(reckoned.host));
  }
}

TEST(DeviceRecipe, WhatDoesNotFitIsRefusedWithItsStageAndItsOwners) {
  const std::string lora = "qwen2.5_7b_gsm8k_lora_24gb";
  EXPECT_EQ(refusal(lora, {}), "");
  const std::string doubled = refusal(lora, {{"rollout.kv_cache_mib", "12288"}, {"rollout.max_running", "128"}});
  for (const char* part : {"memory.device_mib: is 23028, and rollout: ", "kv_cache ", "weights 14525", "rollout.kv_cache_mib (kv_cache)"})
    EXPECT_NE(doubled.find(part), std::string::npos) << part << " in " << doubled;
  const std::string whole = refusal(lora, {{"model.lora_rank", "0"}});
  for (const char* part : {"and train: ", "gradients 290", "optimizer ", "model.lora_rank (gradients)"})
    EXPECT_NE(whole.find(part), std::string::npos) << part << " in " << whole;
}

TEST(DeviceRecipe, EachSwitchThatARecipeTurnsOnIsNeededThere) {
  const std::vector<std::pair<std::string, Settings>> cases = {
      {"qwen2.5_7b_gsm8k_lora_24gb", {{"model.lora_rank", "0"}}},
      {"qwen2.5_7b_gsm8k_lora_24gb", {{"memory.offload_train_grad", "false"}}},
      {"qwen2.5_1.5b_gsm8k_24gb", {{"train.swap_optimizer", "false"}}},
      {"qwen2.5_1.5b_gsm8k_24gb", {{"train.recompute", "none"}}},
      {"qwen2.5_7b_math_80gb", {{"train.swap_optimizer", "false"}}},
      {"qwen2.5_7b_math_80gb", {{"memory.offload_train_grad", "false"}}},
      {"qwen2.5_3b_math_80gb", {{"memory.offload_train_grad", "false"}, {"memory.offload_train_optimizer", "false"}}},
      {"qwen2.5_7b_math_8x80gb", {{"memory.offload_train_grad", "false"}}},
      {"qwen2.5_32b_math_8x80gb", {{"memory.offload_train_optimizer", "false"}}},
      {"qwen2.5_32b_math_lora_8x80gb", {{"model.lora_rank", "0"}}}};
  for (const auto& [name, settings] : cases)
    EXPECT_TRUE(refusal(name, settings).starts_with("memory.device_mib: ")) << name << " fits without " << settings[0].name;
}

TEST(DeviceRecipe, ThePageSaysWhetherItFits) {
  const auto page = [](const Settings& settings) {
    const config::RunConfig config = load("qwen2.5_7b_math_80gb", settings);
    return to_text(reckoned_of(config), config);
  };
  EXPECT_NE(page({}).find(": it fits, with "), std::string::npos) << page({});
  EXPECT_TRUE(page({{"memory.device_mib", "1000"}}).ends_with("and memory.device_mib is 1000: it does not fit.\n"));
  EXPECT_TRUE(page({{"memory.device_mib", "0"}}).ends_with("memory.device_mib is 0: no budget.\n"));
}

TEST(DeviceRecipe, AHostThatIsTooSmallIsRefused) {
  const std::string refused = refusal("qwen2.5_7b_math_80gb", {{"memory.host_mib", "65536"}});
  EXPECT_TRUE(refused.starts_with("memory.host_mib: is 65536, and the host: ")) << refused;
  EXPECT_NE(refused.find("master_weights"), std::string::npos) << refused;
}

TEST(DeviceRecipe, WhatHasNoFormulaIsSaid) {
  const std::string name = "qwen2.5_7b_math_8x80gb";
  EXPECT_NE(refusal(name, {{"data.max_prompt_tokens", "0"}}).find("data.max_prompt_tokens is 0"), std::string::npos);
  EXPECT_NE(refusal(name, {{"parallel.train_layout", "dp4,pp2"}}).find("no formula for pp and cp"), std::string::npos);
  EXPECT_NE(refusal(name, {{"algo.name", "ppo"}}).find("no formula for a critic"), std::string::npos);
  EXPECT_NE(refusal(name, {{"rollout.max_new_tokens", "40000"}}).find("the model's context of 32768"), std::string::npos);
  EXPECT_NE(refusal(name, {{"rollout.kv_cache_mib", "100"}}).find("rollout.kv_cache_mib: is 100"), std::string::npos);
  EXPECT_NE(refusal(name, {{"run.kernels", "aten"}}).find("no formula for run.kernels aten"), std::string::npos);
}

// Handed over, training's weights leave as rollout's come: the stage that trains no longer holds both.
TEST(Reckoned, WeightsOfRolloutLeaveWhileABatchIsTrained) {
  const std::string name = "qwen2.5_7b_math_8x80gb";
  const auto stage_of = [](const Reckoned& r, const std::string& stage) {
    return std::ranges::find(r.stages, stage, &StageMemory::stage)->device;
  };
  const Reckoned stays = reckoned_of(load(name)), leaves = reckoned_of(load(name, {{"memory.offload_train_param", "true"}}));
  const int64_t trained = stage_of(stays, "train").at("weights"), rolled = stage_of(stays, "train").at("rollout_weights");
  EXPECT_GT(rolled, trained) << "whole against half";
  EXPECT_EQ(sum_of(stage_of(stays, "train")) - sum_of(stage_of(leaves, "train")), rolled);
  EXPECT_EQ(sum_of(stage_of(stays, "rollout")) - sum_of(stage_of(leaves, "rollout")), trained);
  EXPECT_EQ(sum_of(stage_of(stays, "switch")) - sum_of(stage_of(leaves, "switch")), trained) << "the larger of both";
  EXPECT_GT(stage_of(stays, "switch").at("staging"), 0);
  EXPECT_LE(stage_of(stays, "switch").at("staging"), 64 << 20);
  EXPECT_EQ(leaves.host.at("weights"), trained);
}

}  // namespace
}  // namespace tandem::fit
