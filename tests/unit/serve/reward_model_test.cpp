// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/reward_model.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/checkpoint/model_dir.h"
#include "tandem/checkpoint/model_export.h"
#include "tandem/device/process.h"
#include "tandem/model/config.h"

namespace tandem::serve {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFixtures = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/";

struct Case {
  std::string prompt;  ///< of neighbours with one prompt, a group
  reward::Answer answer;
  double score;
};

std::vector<Case> cases(const std::string& dir) {
  std::vector<Case> all;
  std::ifstream in(dir + "/answers.jsonl");
  for (std::string line; std::getline(in, line);) {
    const json row = json::parse(line);
    reward::Answer answer{row.at("response"), ""};
    if (row.contains("prompt")) answer.prompt = row.at("prompt");
    else answer.messages = json{{"messages", row.at("messages")}}.dump();
    all.push_back({answer.prompt + answer.messages, answer, row.at("score")});
  }
  return all;
}

// The reward of a recipe that names a directory alone.
struct RuleOf {
  explicit RuleOf(const std::string& dir, const device::Arena& arena = device::Arena("device"), int threads = kAlone)
      : models(threads, arena) {
    reward::Options options;
    options.model = dir;
    rule = reward::make_reward(options, models.maker());
  }
  const reward::Rule* operator->() const { return rule.get(); }
  const reward::Rule& operator*() const { return *rule; }

  RewardModels models;
  std::unique_ptr<reward::Rule> rule;
};

std::string refusal(const std::string& dir) {
  try {
    RuleOf{dir};
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

// A copy of a fixture, to be changed.
class Copy {
 public:
  explicit Copy(const std::string& name) { fs::copy(kFixtures + name, dir, fs::copy_options::recursive); }
  ~Copy() { fs::remove_all(dir); }
  void set(const char* key, const json& value) const {
    std::ifstream in(dir + "/config.json");
    json config = json::parse(in);
    in.close();
    config[key] = value;
    std::ofstream(dir + "/config.json") << config;
  }
  const std::string dir = (fs::temp_directory_path() / ("tandem_reward_model_" + std::to_string(::getpid()))).string();
};

TEST(RewardModel, AnswersScoreAsInTransformersAloneAndInAGroup) {
  for (const char* name : {"qwen2_score1", "qwen3_score1"}) {
    const RuleOf rule(kFixtures + name);
    const std::vector<Case> all = cases(kFixtures + name);
    ASSERT_EQ(all.size(), 10u);
    for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      std::vector<reward::Answer> group;
      for (; end < all.size() && all[end].prompt == all[begin].prompt; ++end) group.push_back(all[end].answer);
      const std::vector<reward::Score> scores = rule->score_batch(group);
      ASSERT_EQ(scores.size(), group.size());
      for (size_t i = 0; i < scores.size(); ++i) {
        EXPECT_NEAR(scores[i].score, all[begin + i].score, 1e-5) << name << ": " << group[i].response;
        EXPECT_NEAR(rule->score(group[i]).score, all[begin + i].score, 1e-5) << name << " alone: " << group[i].response;
      }
    }
  }
}

TEST(RewardModel, AGroupOfManyTokensIsCutIntoPassesOfTheSameScores) {
  const Copy copy("qwen2_score1");
  copy.set("max_position_embeddings", 16384);
  const RuleOf rule(copy.dir);
  std::vector<reward::Answer> group;
  for (int i = 0; i < 5; ++i) {
    group.push_back({std::string(static_cast<size_t>(4000 + 700 * i), static_cast<char>('a' + i)), ""});
    group.back().prompt = "x y z";
  }
  const std::vector<reward::Score> together = rule->score_batch(group);
  for (size_t i = 0; i < group.size(); ++i) EXPECT_NEAR(together[i].score, rule->score(group[i]).score, 1e-5) << i;
}

TEST(RewardModel, EqualAnswersOfAGroupHaveEqualScores) {
  const RuleOf rule(kFixtures + "qwen2_score1");
  std::vector<reward::Answer> group;
  for (const char* response : {"4", "42", "4", "forty-two", "42", "4"}) {
    group.push_back({response, ""});
    group.back().prompt = "6*7=";
  }
  const std::vector<reward::Score> scores = rule->score_batch(group);
  ASSERT_EQ(scores.size(), 6u);
  for (const auto& [a, b] : {std::pair{0, 2}, {2, 5}, {1, 4}})
    EXPECT_EQ(scores[static_cast<size_t>(a)].score, scores[static_cast<size_t>(b)].score);
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 3}})
    EXPECT_NE(scores[static_cast<size_t>(a)].score, scores[static_cast<size_t>(b)].score);
  const std::vector<reward::Answer> same(3, group[1]);
  for (const reward::Score& score : rule->score_batch(same)) EXPECT_NEAR(score.score, scores[1].score, 1e-5);
}

TEST(RewardModel, InBfloat16AScoreIsOffByItsRounding) {
  reward::Options options;
  options.model = kFixtures + "qwen2_score1";
  options.model_dtype = "bfloat16";
  const device::Arena arena("device");
  RewardModels models(serve::kAlone, arena);
  const auto rule = reward::make_rule("model", options, models.maker());
  double worst = 0;
  for (const Case& one : cases(options.model)) worst = std::max(worst, std::abs(rule->score(one.answer).score - one.score));
  EXPECT_LE(worst, 0.1) << "2^-8 of a number, some dozen times over";
  EXPECT_GT(worst, 1e-4) << "or it did not round";
  EXPECT_LE(arena.bytes("reward_model"), 50'000) << "two bytes a weight";
}

TEST(RewardModel, ScoresAreTheSameBitsInAnyThreadAndWithAnyNumber) {
  const std::string dir = kFixtures + "qwen2_score1";
  const RuleOf rule(dir), beside(dir, device::Arena("device"), serve::kBesideGeneration);
  std::vector<reward::Answer> group;
  for (const Case& one : cases(dir))
    if (one.prompt == "6*7=") group.push_back(one.answer);
  ASSERT_EQ(group.size(), 4u);
  const auto bits = [&](const reward::Rule& by) {
    std::vector<double> scores;
    for (const reward::Score& score : by.score_batch(group)) scores.push_back(score.score);
    return scores;
  };
  const std::vector<double> want = bits(*rule);
  std::vector<std::vector<double>> got(6);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = bits(i % 2 ? *rule : *beside); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : got) EXPECT_EQ(one, want);
}

TEST(RewardModel, ALongConversationLosesItsBeginning) {
  const RuleOf rule(kFixtures + "qwen2_score1");  // a context of 128 bytes
  const std::string tail(60, 'b');
  reward::Answer much{std::string(68, 'a') + tail, ""}, more = much;
  more.prompt = "what is cut off";
  testing::internal::CaptureStderr();
  const double want = rule->score(much).score;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_NEAR(rule->score(more).score, want, 1e-6);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("1 conversations so far"), std::string::npos);
  much.response = std::string(67, 'a') + tail;
  EXPECT_NE(rule->score(much).score, want) << "128 tokens, not 127";
}

TEST(RewardModel, ItsWeightsAreCounted) {
  const device::Arena arena("device");
  const RuleOf rule(kFixtures + "qwen2_score1", arena);
  EXPECT_GE(arena.bytes("reward_model"), 90'000);
  EXPECT_FALSE(rule->needs_gold());
  const device::Arena other("device");
  reward::Options options;
  options.model = kFixtures + "qwen2_score1";
  options.rules = {"number=1", "model=0.5"};
  options.by_source = {"a=model", "b=model(model=" + options.model + ")"};
  RewardModels models(serve::kAlone, other);
  const auto several = reward::make_reward(options, models.maker());
  EXPECT_EQ(other.bytes("reward_model"), arena.bytes("reward_model")) << "three rules, one copy";
}

TEST(RewardModel, WhatIsNoRewardModelIsRefusedBeforeItIsAsked) {
  EXPECT_NE(refusal(kFixtures + "nowhere").find("nowhere: is no directory"), std::string::npos);
  EXPECT_NE(refusal(kFixtures + "llama").find("no score head"), std::string::npos);
  EXPECT_NE(refusal(kFixtures + "llama_score3").find("has 3 labels"), std::string::npos);
  const Copy copy("qwen2_score1");
  fs::remove(copy.dir + "/tokenizer.json");
  EXPECT_NE(refusal(copy.dir).find("has no tokenizer"), std::string::npos);
  RewardModels models(serve::kAlone);
  EXPECT_THROW(reward::make_rule("model", {}, models.maker()), UserError) << "no directory";
}

TEST(RewardModel, WhatItCannotReadIsNamed) {
  const Copy copy("qwen2_score1");
  fs::remove(copy.dir + "/chat_template.jinja");
  const RuleOf rule(copy.dir);
  reward::Answer answer{"42", ""};
  answer.messages = R"({"messages": [{"role": "user", "content": "6*7"}]})";
  EXPECT_THROW(rule->score(answer), UserError) << "messages without a template";
  answer.prompt = "6*7=";
  const double as_text = rule->score(answer).score;
  answer.messages.clear();
  EXPECT_EQ(rule->score(answer).score, as_text) << "the text the policy saw serves as well";
  EXPECT_THROW(rule->score({"", ""}), UserError) << "nothing to score";
}

TEST(RewardModel, ARunThatEndsGivesItsPassUp) {
  const Copy copy("qwen2_score1");
  copy.set("max_position_embeddings", 1 << 20);
  const RuleOf rule(copy.dir);
  std::atomic<bool> thrown = false;
  std::thread grading([&] {
    try {
      for (;;) rule->score({std::string(20'000, 'a'), ""});
    } catch (const UserError&) {
      thrown = true;
    }
  });
  while (!thrown) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    rule->abandon();
  }
  grading.join();
  EXPECT_TRUE(std::isfinite(rule->score({"42", ""}).score)) << "later calls work";
}

TEST(RewardModel, AWorkersThreadGetsItsThreadsBack) {
  device::set_compute_threads(2);
  const int before = at::get_num_threads();
  {
    const device::ThreadLimit limit(1);
    EXPECT_EQ(at::get_num_threads(), 1);
    std::thread([&] { EXPECT_EQ(at::get_num_threads(), 2) << "others keep theirs"; }).join();
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

std::string python_with_transformers() {
  const char* named = std::getenv("TANDEM_PEERS_PYTHON");
  for (const std::string& python : {std::string(named ? named : ""), std::string(TANDEM_SOURCE_DIR) + "/../peers-venv/bin/python"})
    if (!python.empty() && fs::exists(python) && std::system((python + " -c 'import torch, transformers' 2>/dev/null").c_str()) == 0)
      return python;
  return "";
}

TEST(RewardModel, ADirectoryWeWriteOpensInTransformersWithTheSameScores) {
  const std::string python = python_with_transformers();
  if (python.empty()) GTEST_SKIP() << "no Python with transformers (TANDEM_PEERS_PYTHON names one)";
  const Copy copy("qwen2_score1");
  const checkpoint::ModelDir files(kFixtures + "qwen2_score1");
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : files.names()) tensors[name] = files.tensor(name);
  const model::ModelConfig config = model::read_config(copy.dir, model::ModelUse::kScores);
  checkpoint::write_model_dir(copy.dir, model::to_json(config, "float32"), tensors);
  const std::string script = R"(
import json, sys, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model, info = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], dtype=torch.float32, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
assert model.config.num_labels == 1, model.config
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for line in open(sys.argv[1] + "/answers.jsonl"):
    row = json.loads(line)
    if "prompt" in row:
        with torch.no_grad():
            got = model(torch.tensor([tokenizer(row["prompt"] + row["response"])["input_ids"]])).logits[0, 0].item()
        assert abs(got - row["score"]) < 1e-5, (got, row)
)";
  std::ofstream(copy.dir + "/check.py") << script;
  const int code = std::system((python + " " + copy.dir + "/check.py " + copy.dir + " >/dev/null 2>" + copy.dir + "/err").c_str());
  std::ostringstream said;
  said << std::ifstream(copy.dir + "/err").rdbuf();
  EXPECT_EQ(code, 0) << said.str();
}

}  // namespace
}  // namespace tandem::serve
