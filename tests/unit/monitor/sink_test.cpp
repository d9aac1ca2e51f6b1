// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "../../small_files.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/monitor/jsonl_sink.h"
#include "tandem/monitor/tensorboard_sink.h"
#include "tandem/monitor/timeline_sink.h"
#include "tandem/monitor/trace_sink.h"

namespace tandem::monitor {
namespace {

namespace fs = std::filesystem;

class SinkTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tandem_sink_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string content(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }
  fs::path folder_;
};

TEST_F(SinkTest, AMetricsLineStartsWithTheStepAndEscapesNames) {
  JsonlSink sink(path("metrics.jsonl"));
  sink.write_step(3, {{"a\"b\n", 1}, {"reward/mean", 0.1}, {"step", 99}});
  EXPECT_EQ(content(path("metrics.jsonl")), "{\"step\":3,\"a\\\"b\\n\":1,\"reward/mean\":0.1}\n");
}

TEST_F(SinkTest, NumbersReadBackBitForBitAndNaNIsNull) {
  const uint64_t seed = 11;
  RandomStream stream(seed, 0);
  Metrics metrics{{"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}, {"tiny", 5e-324}, {"third", 1.0 / 3}};
  for (int i = 0; i < 1000; ++i) {
    const double fraction = stream.uniform() - 0.5;
    metrics["x" + std::to_string(i)] = std::ldexp(fraction, static_cast<int>(stream.below(600)) - 300);
  }
  JsonlSink(path("metrics.jsonl")).write_step(1, metrics);
  const auto line = nlohmann::json::parse(content(path("metrics.jsonl")));
  for (const auto& [name, value] : metrics) {
    if (std::isfinite(value)) EXPECT_EQ(line.at(name).get<double>(), value) << name << ", seed " << seed;
    else EXPECT_TRUE(line.at(name).is_null());
  }
}

TEST_F(SinkTest, ATimelineHasALineForEachStepWithTheStagesOfEachRank) {
  int64_t after_first = 0;
  {
    TimelineSink sink(path("timeline.jsonl"));
    sink.write_spans({{"train", "rank 1", 10.5, 11.25, 0.25}, {"rollout", "rank 0", 10, 10.5}, {"train", "rank 0", 10.5, 11},
                      {"layer 3", "passes", 10.5, 10.6}, {"5 tokens/s", "worker 3", 10, 11}});
    sink.write_step(1, {});
    after_first = sink.flush();
    sink.write_step(2, {});  // no span, no line
    sink.write_spans({{"train", "rank 0", 12, 13, 1}});
    sink.write_step(3, {});
  }
  std::istringstream lines(content(path("timeline.jsonl")));
  std::string first, second, third;
  std::getline(lines, first), std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, third));
  const auto line = nlohmann::json::parse(first);
  EXPECT_EQ(line.at("step"), 1);
  EXPECT_EQ(line.at("ranks").dump(), R"({"rank 0":[["rollout",0,500,0],["train",500,1000,0]],"rank 1":[["train",500,1250,250]]})");
  EXPECT_EQ(line.at("workers").dump(), R"({"worker 3":"5 tokens/s"})");
  EXPECT_FALSE(nlohmann::json::parse(second).contains("workers"));
  EXPECT_EQ(nlohmann::json::parse(second).at("ranks").dump(), R"({"rank 0":[["train",0,1000,1000]]})");
  TimelineSink(path("timeline.jsonl"), after_first);
  EXPECT_EQ(content(path("timeline.jsonl")), first + "\n");
}

TEST_F(SinkTest, ResumeDropsTheStepsAfterTheCheckpoint) {
  int64_t offset = 0, trace_offset = 0, events_offset = 0;
  std::string events_path;
  {
    JsonlSink metrics(path("metrics.jsonl"));
    TraceSink trace(path("trace.json"));
    TensorBoardSink events(path("tensorboard"));
    events_path = events.path();
    for (int step = 1; step <= 3; ++step) {
      metrics.write_step(step, {{"x", step}});
      trace.write_spans({{"s" + std::to_string(step), "train", 1.0 * step, 2.0 * step}});
      events.write_step(step, {{"x", step}});
      if (step != 2) continue;
      offset = metrics.flush();
      trace_offset = trace.flush();
      events_offset = events.flush();
    }
  }
  const std::string events_before = content(events_path);
  {
    JsonlSink metrics(path("metrics.jsonl"), offset);
    TraceSink trace(path("trace.json"), trace_offset);
    TensorBoardSink events(path("tensorboard"), events_offset);
    EXPECT_EQ(events.path(), events_path);
    EXPECT_EQ(content(events_path), events_before.substr(0, static_cast<size_t>(events_offset)));
    metrics.write_step(3, {{"x", 30}});
    trace.write_spans({{"again", "train", 1, 2}});
  }
  EXPECT_EQ(content(path("metrics.jsonl")), "{\"step\":1,\"x\":1}\n{\"step\":2,\"x\":2}\n{\"step\":3,\"x\":30}\n");
  std::vector<std::string> names;
  const auto trace = nlohmann::json::parse(content(path("trace.json")));
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") names.push_back(event.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"s1", "s2", "again"}));
}

TEST_F(SinkTest, TheTraceIsWholeJsonAfterEveryWrite) {
  TraceSink sink(path("trace.json"));
  EXPECT_TRUE(nlohmann::json::accept(content(path("trace.json"))));
  for (int step = 1; step < 20; ++step) {
    sink.write_spans({{"roll\"out", "engine", 0.5, 1.5}, {"train", "trainer", 1.5, 2.0}});
    EXPECT_TRUE(nlohmann::json::accept(content(path("trace.json"))));
    sink.write_step(step, {});
    EXPECT_TRUE(nlohmann::json::accept(content(path("trace.json"))));
  }
  const auto events = nlohmann::json::parse(content(path("trace.json"))).at("traceEvents");
  int spans = 0;
  for (const auto& event : events)
    if (event.at("ph") == "X" && event.at("name") == "roll\"out") {
      EXPECT_NEAR(event.at("dur").get<double>(), 1e6, 1e-3);
      ++spans;
    }
  EXPECT_EQ(spans, 19);
}

TEST_F(SinkTest, AFileShorterThanTheCheckpointSaysIsContinuedNotPadded) {
  JsonlSink(path("metrics.jsonl")).write_step(1, {});
  JsonlSink(path("metrics.jsonl"), 1000).write_step(2, {});
  EXPECT_EQ(content(path("metrics.jsonl")), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(SinkTest, AFullDiskWarnsOnceAndLeavesWholeLines) {
  {
    JsonlSink metrics(path("metrics.jsonl"));
    TraceSink trace(path("trace.json"));
    auto limit = std::make_optional<test::SmallFiles>(600);
    testing::internal::CaptureStderr();
    for (int step = 0; step < 100; ++step) {
      metrics.write_step(step, {{"reward/mean", 0.5}});
      trace.write_spans({{"train", "trainer", 0, 1}});
    }
    const std::string warnings = testing::internal::GetCapturedStderr();
    limit.reset();
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2) << warnings;
    EXPECT_NE(warnings.find("metrics.jsonl"), std::string::npos);
    metrics.write_step(100, {});
  }
  EXPECT_TRUE(nlohmann::json::accept(content(path("trace.json"))));
  std::ifstream lines(path("metrics.jsonl"));
  std::string line, last;
  for (; std::getline(lines, line); last = line) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(last, "{\"step\":100}");
}

TEST_F(SinkTest, AnUnwritableFolderIsTheUsersError) { EXPECT_THROW(JsonlSink("/proc/none/metrics.jsonl"), UserError); }

}  // namespace
}  // namespace tandem::monitor
