// SPDX-License-Identifier: Apache-2.0
#include "tandem/board/run_folder.h"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "../../small_memory.h"
#include "tandem/base/error.h"
#include "tandem/data/sample_store.h"

namespace tandem::board {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tandem_board_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void append(const std::string& text) { std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << text; }
  fs::path folder_;
};

TEST_F(RunFolderTest, AMissingFolderIsTheUsersError) { EXPECT_THROW(RunFolder((folder_ / "none").string()), UserError); }

TEST_F(RunFolderTest, AnEmptyFolderGivesEmptyAnswers) {
  RunFolder run(folder_.string());
  EXPECT_EQ(json::parse(run.metrics(0)).at("lines"), json::array());
  EXPECT_EQ(json::parse(run.steps()).at("steps"), json::array());
  EXPECT_EQ(json::parse(run.run()).at("total_steps"), 0);
}

TEST_F(RunFolderTest, AHalfWrittenLastLineWaitsUntilItIsWhole) {
  RunFolder run(folder_.string());
  append("{\"step\":1,\"x\":0.5}\n{\"step\":2,\"x\":");
  json found = json::parse(run.metrics(0));
  EXPECT_EQ(found.at("next"), 1);
  ASSERT_EQ(found.at("lines").size(), 1u);
  append("0.75}\n");
  found = json::parse(run.metrics(1));
  EXPECT_EQ(found.at("from"), 1);
  EXPECT_EQ(found.at("lines"), json::parse("[{\"step\":2,\"x\":0.75}]"));
  EXPECT_EQ(json::parse(run.metrics(2)).at("lines"), json::array());
}

// Lines that a scrape must and must not have.
void expect_gauges(const std::string& text, const std::vector<std::string>& present, const std::vector<std::string>& absent) {
  for (const std::string& line : present) EXPECT_NE(("\n" + text).find("\n" + line + "\n"), std::string::npos) << line << " in\n" << text;
  for (const std::string& name : absent) EXPECT_EQ(text.find(name), std::string::npos) << name << " in\n" << text;
}

TEST_F(RunFolderTest, PrometheusGetsTheNewestStepAndTheNewestEvaluation) {
  RunFolder run(folder_.string());
  EXPECT_EQ(run.prometheus(), "");
  append("{\"step\":1,\"eval/accuracy\":0.25,\"eval/a/accuracy\":0.125,\"staleness/lag_3\":4,\"actor/loss\":0.5}\n");
  append("{\"step\":2,\"actor/loss\":null,\"reward/mean\":0.75}\n[3]\n{\"step\":3,");
  expect_gauges(run.prometheus(), {"tandem_step 2", "tandem_eval_accuracy 0.25", "tandem_eval_a_accuracy 0.125", "tandem_reward_mean 0.75"},
                {"lag_3", "loss"});
  append("\"eval/accuracy\":0.5}\n");
  expect_gauges(run.prometheus(), {"tandem_step 3", "tandem_eval_accuracy 0.5"}, {"eval_a_", "reward"});
  for (int64_t step = 4; step < 4 + RunFolder::kLinesPerMark; ++step) append("{\"step\":" + std::to_string(step) + "}\n");
  expect_gauges(run.prometheus(), {"tandem_step " + std::to_string(3 + RunFolder::kLinesPerMark), "tandem_eval_accuracy 0.5"}, {});
}

TEST_F(RunFolderTest, AResumeThatCutTheFileBackStartsANewGeneration) {
  RunFolder run(folder_.string());
  append("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  EXPECT_EQ(json::parse(run.metrics(0)).at("generation"), 0);
  fs::resize_file(folder_ / "metrics.jsonl", 11);
  append("{\"step\":2,\"b\":1}\n{\"step\":3,\"b\":1}\n{\"step\":4,\"b\":1}\n");  // longer than before
  const json found = json::parse(run.metrics(0));
  EXPECT_EQ(found.at("generation"), 1);
  EXPECT_EQ(found.at("lines").size(), 4u);
}

TEST_F(RunFolderTest, ABrokenLineIsLeftOut) {
  RunFolder run(folder_.string());
  append("{\"step\":1}\nnoise\n{\"step\":2}\n");
  const json found = json::parse(run.metrics(0));
  EXPECT_EQ(found.at("next"), 3);
  EXPECT_EQ(found.at("lines").size(), 2u);
}

TEST_F(RunFolderTest, JsonThatNestsWithoutEndIsNoSummaryAndNoLine) {
  const std::string deep = std::string(3'000'000, '[') + std::string(3'000'000, ']');
  std::ofstream(folder_ / "summary.json") << "{\"a\":" << deep << "}";
  append("{\"step\":1}\n{\"a\":" + deep.substr(2'990'000, 20'000) + "}\n{\"step\":2}\n");
  RunFolder run(folder_.string());
  EXPECT_TRUE(json::parse(run.run()).at("summary").is_null());
  EXPECT_EQ(json::parse(run.metrics(0)).at("lines"), json::parse(R"([{"step":1},{"step":2}])"));
}

TEST_F(RunFolderTest, WhatIsNoFileCountsAsMissingAndDoesNotHang) {
  for (const char* name : {"metrics.jsonl", "summary.json", "config.yaml"}) ::mkfifo((folder_ / name).c_str(), 0600);
  RunFolder run(folder_.string());
  EXPECT_TRUE(json::parse(run.run()).at("summary").is_null());
  EXPECT_EQ(json::parse(run.metrics(0)).at("total"), 0);
  for (const char* name : {"metrics.jsonl", "summary.json", "config.yaml"}) {
    fs::remove(folder_ / name);
    fs::create_symlink("/dev/zero", folder_ / name);
  }
  EXPECT_EQ(json::parse(run.run()).at("config"), "");
  EXPECT_EQ(json::parse(run.metrics(0)).at("total"), 0);
}

TEST_F(RunFolderTest, AFileThatIsTooLargeToBeOneOfOursCountsAsMissing) {
  for (const char* name : {"summary.json", "config.yaml"}) {
    std::ofstream(folder_ / name) << "{}";
    fs::resize_file(folder_ / name, uintmax_t{1} << 40);
  }
  RunFolder run(folder_.string());
  EXPECT_EQ(json::parse(run.run()).at("config"), "");
  EXPECT_TRUE(json::parse(run.run()).at("summary").is_null());
}

TEST_F(RunFolderTest, AnAnswerIsRightFromTheScoreOnThatTheRecipeSays) {
  const std::vector<double> scores = {0.2, 0.5, 0.7, 0.75, 1};
  {
    data::SampleStore store((folder_ / "samples.sqlite").string());
    std::vector<data::EvalAnswer> answers;
    for (const double score : scores) answers.push_back({std::ssize(answers), "p", "a", "r", score});
    store.append_evals(StepId{3}, answers);
  }
  const auto seen = [&](const std::string& recipe) {
    std::ofstream(folder_ / "config.yaml") << recipe;
    RunFolder run(folder_.string());
    const json evaluation = json::parse(run.steps()).at("evals").at(0);
    EXPECT_DOUBLE_EQ(evaluation.at("score"), 0.63);
    std::vector<bool> right;
    const json found = json::parse(run.evals({{3}}));
    for (const json& answer : found.at("answers")) right.push_back(answer.at("score") >= found.at("right_at"));
    EXPECT_DOUBLE_EQ(evaluation.at("accuracy"), static_cast<double>(std::ranges::count(right, true)) / 5);
    return right;
  };
  using Right = std::vector<bool>;
  EXPECT_EQ(seen("run:\n  steps: 9\n"), (Right{false, true, true, true, true})) << "the default, of a recipe that does not say";
  EXPECT_EQ(seen("eval:\n  every_steps: 1\n  right_at: 0.75\n"), (Right{false, false, false, true, true}));
  EXPECT_EQ(seen("other:\n  right_at: 0\neval:\n  right_at: 1\n"), (Right{false, false, false, false, true}));
  EXPECT_EQ(seen("eval:\n  right_at: -1.5e-1\n"), Right(5, true));
}

// Every place to ask from gives the lines from there, whatever lies between: the marks are some hundred lines apart.
TEST_F(RunFolderTest, AllLinesComeWhateverTheyAreAskedFrom) {
  constexpr int kLines = 3000;
  std::string text;
  for (int i = 0; i < kLines; ++i) {
    const bool broken = i % 97 == 0;
    if (broken) text += i % 2 ? "\n" : std::string(1000, '[') + "\n";
    else text += json{{"step", i}, {"pad", std::string(i % 300, 'x')}}.dump() + "\n";
  }
  append(text.substr(0, text.size() / 3));
  RunFolder run(folder_.string());
  run.metrics(0);
  append(text.substr(text.size() / 3));
  for (const int from : {0, 1, 255, 256, 257, 511, 1000, 2998, 2999, 3000, 9999}) {
    const json found = json::parse(run.metrics(from));
    EXPECT_EQ(found.at("total"), kLines);
    EXPECT_EQ(found.at("next"), kLines);
    std::vector<int> steps, expected;
    for (const json& line : found.at("lines")) steps.push_back(line.at("step"));
    for (int i = from; i < kLines; ++i)
      if (i % 97 != 0) expected.push_back(i);
    EXPECT_EQ(steps, expected) << from;
  }
}

TEST_F(RunFolderTest, AnyAmountOfMetricsIsReadInLittleMemory) {
  const std::string long_line(100'000'000, 'x'), line = "{\"step\":1,\"pad\":\"" + std::string(9000, 'y') + "\"}\n";
  {
    std::ofstream out(folder_ / "metrics.jsonl");
    for (int i = 0; i < 12'000; ++i) out << line;  // 108 MB
    out << long_line << "\n{\"step\":2}\n";
    for (int i = 0; i < 3'000'000; ++i) out << '\n';
  }
  EXPECT_EQ(test::within_memory(int64_t{150} << 20, 200, [&] {
              RunFolder run(folder_.string());
              int64_t from = 0, num_lines = 0, num_replies = 0;
              for (json found; from == 0 || from < found.at("total"); from = found.at("next")) {
                const std::string reply = run.metrics(from);
                if (std::ssize(reply) > RunFolder::kMaxReply_bytes + 2 * RunFolder::kMaxLine_bytes) throw std::runtime_error("too large");
                found = json::parse(reply);
                num_lines += std::ssize(found.at("lines"));
                if (++num_replies == 30) break;  // the empty lines are some 700 more
              }
              if (num_lines != 12'001 || json::parse(run.run()).at("num_lines") != 3'012'002) throw std::runtime_error("lines are missing");
            }), "done");
}

// As a run holds its folder.
class HeldLock {
 public:
  explicit HeldLock(const fs::path& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) throw std::runtime_error("the lock is held");
  }
  ~HeldLock() { ::close(file_); }
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

 private:
  int file_;
};

TEST_F(RunFolderTest, ARunIsRunningAsLongAsItsLockIsHeldHoweverOldItsFilesAre) {
  RunFolder run(folder_.string());
  EXPECT_EQ(json::parse(run.run()).at("state"), "empty");
  {
    const HeldLock lock(folder_ / ".lock");
    std::ofstream(folder_ / "config.yaml") << "model:\n  path: x\nrun:\n  steps: 40  # all\n";
    append("{\"step\":1,\"policy_version\":1}\n");
    for (const char* name : {"metrics.jsonl", "config.yaml"})
      fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - std::chrono::hours(2));
    EXPECT_EQ(json::parse(run.run()).at("state"), "running");
    EXPECT_EQ(json::parse(run.run()).at("total_steps"), 40);
    std::ofstream(folder_ / "summary.json") << "{}";
    EXPECT_EQ(json::parse(run.run()).at("state"), "running") << "a finished run that is resumed";
    fs::remove(folder_ / "summary.json");
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "{\"step\":2,\"policy_version\":2}\n";
  }
  EXPECT_EQ(json::parse(run.run()).at("state"), "killed") << "it wrote a moment ago, but nobody holds it";
  EXPECT_NEAR(json::parse(run.run()).at("wrote_unix_s").get<double>(), static_cast<double>(std::time(nullptr)), 60);
  const HeldLock again(folder_ / ".lock");
  EXPECT_EQ(json::parse(run.run()).at("state"), "running");
}

TEST_F(RunFolderTest, ASummaryMeansFinishedInACopyOfTheFolderToo) {
  RunFolder run(folder_.string());
  std::ofstream(folder_ / "summary.json") << R"({"steps":1,"eval_after":{"accuracy":0.5}})";
  append("{\"step\":1,\"policy_version\":1}\n");
  fs::last_write_time(folder_ / "metrics.jsonl", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  const json found = json::parse(run.run());
  EXPECT_EQ(found.at("state"), "finished");
  EXPECT_EQ(found.at("summary").at("eval_after").at("accuracy"), 0.5);
}

TEST_F(RunFolderTest, TheLogsLastWordSaysWhyARunEnded) {
  RunFolder run(folder_.string());
  const auto log = [&](const std::string& text, const char* name = "log.txt") { std::ofstream(folder_ / name, std::ios::app) << text; };
  const auto state = [&] {
    const json found = json::parse(run.run());
    return found.at("state").get<std::string>() + ":" + found.at("error").get<std::string>();
  };
  std::ofstream(folder_ / "config.yaml") << "run:\n  steps: 4\n";
  EXPECT_EQ(state(), "killed:") << "without a log";
  log("2026-11-23T11:17:51Z info step 1/4\n2026-11-23T11:18:12Z error reward: div\xff by zero (a reward that can be computed)\n");
  EXPECT_EQ(state(), "failed:reward: div\xef\xbf\xbd by zero (a reward that can be computed)");
  log("2026-11-23T11:19:51Z info step 2/4\n");
  EXPECT_EQ(state(), "killed:") << "the error was of an earlier attempt";
  log("2026-11-23T11:19:52Z info a text of\n2026 error lines\n");
  EXPECT_EQ(state(), "killed:") << "a line of a text is no entry";
  log("2026-11-23T11:20:12Z info stopped after step 2, which is saved; --resume continues\n");
  EXPECT_EQ(state(), "stopped:stopped after step 2, which is saved; --resume continues");
  log(std::string(1'000'000, 'x') + "\n2026-11-23T11:21:00Z error " + std::string(100, 'y') + "\n");
  EXPECT_EQ(state(), "failed:" + std::string(100, 'y')) << "of a long log the end is read";

  fs::create_directory(folder_ / "warm_start");
  log("2026-11-23T11:30:00Z error no memory\n", "warm_start/log.txt");
  fs::last_write_time(folder_ / "log.txt", fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(state(), "failed:no memory") << "a run that warms up logs in that folder";
  log("2026-11-23T12:00:00Z info step 1/4\n");
  fs::last_write_time(folder_ / "log.txt", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(state(), "killed:");
  fs::create_directory(folder_ / "hf");
  EXPECT_EQ(state(), "finished:") << "a warm start leaves a model, and no summary";
}

TEST_F(RunFolderTest, TheNewestCheckpointIsNamedByItsStep) {
  RunFolder run(folder_.string());
  EXPECT_TRUE(json::parse(run.run()).at("saved_step").is_null());
  fs::create_directories(folder_ / "checkpoint/step_40");
  fs::create_symlink("step_40", folder_ / "checkpoint/latest");
  EXPECT_EQ(json::parse(run.run()).at("saved_step"), 40);
  fs::remove(folder_ / "checkpoint/latest");
  fs::create_symlink("/etc/passwd", folder_ / "checkpoint/latest");
  EXPECT_TRUE(json::parse(run.run()).at("saved_step").is_null());
}

TEST_F(RunFolderTest, ASupervisedRunPlansTheStepsOfItsOwnSection) {
  RunFolder run(folder_.string());
  std::ofstream(folder_ / "config.yaml") << "# recipe\nrun:\n  dir: x\n  steps: 40\ncheckpoint:\n  every_steps: 7\n\nsupervised:\n"
                                            "  # before RL\n  train:\n    warmup_steps: 3\n    steps: 5\n  steps: 900\n";
  EXPECT_EQ(json::parse(run.run()).at("total_steps"), 40) << "before its first line a run is not known to be supervised";
  append("{\"step\":1,\"policy_version\":1,\"reward/mean\":0}\n");
  EXPECT_EQ(json::parse(run.run()).at("total_steps"), 40);
  fs::remove(folder_ / "metrics.jsonl");
  append("{\"step\":1,\"actor/loss\":2.5}\n");
  EXPECT_EQ(json::parse(run.run()).at("total_steps"), 900);
}

TEST_F(RunFolderTest, AnOptionThatIsNoNumberCountsAsAbsent) {
  for (const char* steps : {"nan", "-nan", "inf", "many"}) {
    std::ofstream(folder_ / "config.yaml") << "run:\n  steps: " << steps << "\n";
    EXPECT_EQ(json::parse(RunFolder(folder_.string()).run()).at("total_steps"), 0) << steps;
  }
}

TEST_F(RunFolderTest, SamplesComeInPagesWithScoresAdvantagesAndLag) {
  data::Batch batch{StepId{5}, PolicyVersion{4}, {}};
  std::vector<double> advantages;
  for (int64_t g = 0; g < RunFolder::kGroupsPerPage + 1; ++g) {
    data::Group group;
    group.id = GroupId{g};
    group.prompt = {g, "<b>" + std::to_string(g), {1}, "7", "sums"};
    group.version = PolicyVersion{2};
    data::Sample sample;
    sample.ids = {1, 2};
    sample.versions = {2, 3};
    sample.text = "bad bytes \xff";
    sample.score = 1;
    sample.parts = {{"answer", 1.0}};
    group.samples = {sample};
    if (g == 32) group.greedy.emplace().score = 0.25;
    batch.groups.push_back(group);
    advantages.push_back(0.5);
  }
  data::SampleStore(folder_ / "samples.sqlite").append(batch, advantages);
  RunFolder run(folder_.string());
  EXPECT_EQ(json::parse(run.steps()).at("steps")[0].at("groups"), RunFolder::kGroupsPerPage + 1);
  const json found = json::parse(run.samples({5, 1}));
  EXPECT_EQ(found.at("pages"), 2);
  ASSERT_EQ(found.at("groups").size(), 1u);
  const json& group = found.at("groups")[0];
  EXPECT_EQ(group.at("lag"), 2);
  EXPECT_EQ(group.at("prompt"), "<b>32");
  EXPECT_EQ(group.at("greedy"), 0.25);
  EXPECT_TRUE(json::parse(run.samples({5, 0})).at("groups")[0].at("greedy").is_null());
  EXPECT_EQ(json::parse(run.samples({5, 7, "<B>32"})).at("page"), 0) << "one is found, on one page";
  EXPECT_EQ(json::parse(run.samples({5, 0, "<B>32"})).at("groups"), found.at("groups"));
  EXPECT_THROW(run.samples({5, 0, "", "sideways"}), UserError);
  EXPECT_EQ(group.at("samples")[0].at("advantage"), 0.5);
  EXPECT_EQ(group.at("samples")[0].at("newest_version"), 3);
  EXPECT_EQ(group.at("samples")[0].at("response"), "bad bytes \xef\xbf\xbd");
  EXPECT_EQ(json::parse(run.samples({6, 0})).at("groups"), json::array());
}

TEST_F(RunFolderTest, EachColumnOfATokenIsShown) {
  data::Group group;
  group.id = GroupId{7};
  group.prompt = {0, "1+2=", {1}, "3", "sums"};
  group.samples.resize(2);
  data::Sample& sample = group.samples[1];
  sample.ids = {1, 2};
  sample.logprobs = {-0.5, -0.25};
  sample.trainable = {1, 0};
  sample.versions = {2, 3};
  data::SampleStore(folder_ / "samples.sqlite").append({StepId{5}, PolicyVersion{4}, {group}}, std::vector{0.5, -0.5});
  RunFolder run(folder_.string());
  const json told = json::parse(run.tokens(5, 7, 1)).at("columns");
  EXPECT_EQ(told, (json{{{"name", "response_ids"}, {"values", {1, 2}}}, {{"name", "logprobs"}, {"values", {-0.5, -0.25}}},
                        {{"name", "trainable"}, {"values", {1, 0}}}, {{"name", "versions"}, {"values", {2, 3}}}}));
  EXPECT_EQ(json::parse(run.tokens(5, 7, 0)).at("columns"), json::array());
  for (const auto& [step, id, at] : {std::tuple(6, 7, 0), {5, 8, 0}, {5, 7, 2}, {5, 7, -1}})
    EXPECT_THROW(run.tokens(step, id, at), UserError) << step << " " << id << " " << at;
}

TEST_F(RunFolderTest, AnEvaluationOfNamedSetsIsShownBySet) {
  {
    data::SampleStore store(folder_ / "samples.sqlite");
    store.append_evals(StepId{0}, std::vector<data::EvalAnswer>{{0, "q", "1", "no", 0, "sums"}, {0, "q", "1", "x", 1, "words"}});
    store.append_evals(StepId{5}, std::vector<data::EvalAnswer>{{0, "q", "1", "one", 1, "sums"}, {0, "q", "1", "y", 0, "words", "Why?"}});
  }
  RunFolder run(folder_.string());
  EXPECT_EQ(json::parse(run.steps()).at("evals")[1].at("sets"),
            json::parse(R"([{"name":"sums","answers":1,"accuracy":1.0,"score":1.0},
                            {"name":"words","answers":1,"accuracy":0.0,"score":0.0}])"));
  const json all = json::parse(run.evals({{5, 0}, 0}));
  EXPECT_EQ(all.at("found"), 2);
  EXPECT_EQ(all.at("answers")[1].at("set"), "words");
  EXPECT_EQ(all.at("answers")[1].at("question"), "Why?");
  EXPECT_EQ(all.at("answers")[0].at("question"), "") << "the page finds it in the prompt";
  EXPECT_EQ(all.at("answers")[1].at("before").at("response"), "x") << "a row of another set is not compared with";
  const json one = json::parse(run.evals({{5, 0}, 0, "", "sums"}));
  EXPECT_EQ(one.at("counts"), json::parse(R"({"answers":1,"right":1,"compared":1,"became_right":1,"became_wrong":0})"));
  EXPECT_EQ(one.at("answers")[0].at("before").at("response"), "no");
  EXPECT_EQ(json::parse(run.evals({{5, 0}, 0, "", "others"})).at("found"), 0);
}

TEST_F(RunFolderTest, AnEvaluationIsComparedByWhatTheRecipeCallsRight) {
  {
    data::SampleStore store(folder_ / "samples.sqlite");
    store.append_evals(StepId{0}, std::vector<data::EvalAnswer>{{0, "q", "1", "no", 0.6}, {1, "r", "2", "two", 0.9}});
    store.append_evals(StepId{5}, std::vector<data::EvalAnswer>{{0, "q", "1", "one", 0.8}, {1, "r", "2", "w", 0.1}});
  }
  std::ofstream(folder_ / "config.yaml") << "data:\n  right_at: 0\neval:\n  right_at: 0.75\n";
  RunFolder run(folder_.string());
  json found = json::parse(run.evals({{5, 0}, 0}));
  EXPECT_EQ(found.at("right_at"), 0.75);
  EXPECT_EQ(found.at("counts"), json::parse(R"({"answers":2,"right":1,"compared":2,"became_right":1,"became_wrong":1})"));
  EXPECT_EQ(found.at("answers")[0].at("before"), json::parse(R"({"response":"no","score":0.6,"right":false})"));
  EXPECT_EQ(found.at("answers")[0].at("right"), true);
  EXPECT_EQ(json::parse(run.steps()).at("evals")[1].at("score"), 0.45);
  found = json::parse(run.evals({{5, 0, "", "lowest"}, 0, "became_wrong"}));
  EXPECT_EQ(found.at("found"), 1);
  EXPECT_EQ(found.at("answers")[0].at("response"), "w");
  found = json::parse(run.evals({{5, 0}}));
  EXPECT_TRUE(found.at("answers")[0].at("before").is_null());
  EXPECT_THROW(run.evals({{5, 0}, 0, "improved"}), UserError);
  std::ofstream(folder_ / "config.yaml") << "eval:\n  n: 1\n";
  EXPECT_EQ(json::parse(run.evals({{5, 0}, 0})).at("counts").at("became_right"), 0) << "0.6 is right by the usual 0.5";
}

}  // namespace
}  // namespace tandem::board
