// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/top_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::cli {
namespace {

using nlohmann::json;

json a_run() { return {{"name", "a"}, {"state", "running"}, {"error", ""}, {"total_steps", 40}}; }

json metrics_of(const json& line) { return {{"lines", json::array({line})}}; }

// Two ranks: the first trains and waits in its rollout, the other generates.
json a_timeline() {
  return json::parse(R"({"steps": [{"step": 1, "ranks": {"rank 0": [["old", 0, 1, 0]]}}, {"step": 2, "begin_s": 5, "ranks": {
      "rank 0": [["rollout", 0, 500, 400], ["train", 500, 1000, 0]], "rank 1": [["rollout", 0, 500, 0], ["ahead", 500, 1000, 0]]}}]})");
}

TEST(TopText, ShowsWhatEachRankDidAndWhereItWaited) {
  const json line = {{"step", 2}, {"time/step_s", 1.0}, {"idle/rank_0", 0.4}, {"idle/rank_1", 0.02}};
  const std::string text = top_text(a_run(), metrics_of(line), a_timeline(), 84);
  EXPECT_EQ(text,
            "a   running   step 2/40   1.00 s a step\n"
            "rank 0   idle 40 %  |rr........tttttttttt| waits 0.40 s in rollout for rank 1\n"
            "rank 1   idle 2 %   |rrrrrrrrrraaaaaaaaaa|\n"
            "                    a ahead  r rollout  t train  . waits\n");
}

TEST(TopText, ShowsHowWorkersDo) {
  json timeline = a_timeline();
  json& workers = timeline["steps"][1]["workers"];
  for (int i = 40; i >= 0; --i) workers["worker " + std::to_string(i)] = "5 tokens/s";
  workers["worker 2"] = 7;
  const std::string text = top_text(a_run(), metrics_of({{"step", 2}}), timeline, 84);
  EXPECT_NE(text.find("worker 0   5 tokens/s\nworker 1   5 tokens/s\nworker 3   5 tokens/s\n"), std::string::npos) << text;
  EXPECT_NE(text.find("worker 32  5 tokens/s\nand 8 workers more\n"), std::string::npos) << text;
}

TEST(TopText, ShowsTheQueueAndTheLag) {
  const json line = {{"step", 2},          {"queue/outstanding", 12}, {"queue/waiting", 2}, {"queue/running", 6},
                     {"queue/scoring", 1}, {"queue/depth", 3},      {"staleness/dropped", 2},
                     {"staleness/waited", 0}, {"staleness/lag_0", 1},    {"staleness/lag_1", 3},    {"staleness/lag_max", 1},
                     {"staleness/lag_mean", 0.75}, {"throughput/tokens_per_s", 1234.4}};
  const std::string text = top_text(a_run(), metrics_of(line), {{"steps", json::array()}}, 100);
  EXPECT_EQ(text,
            "a   running   step 2/40\n"
            "groups   12 under way: 2 wait for a token, 6 run, 1 are being scored, 3 finished, 2 dropped in all\n"
            "lag      0: 1   1: 3\n"
            "tokens/s 1234 the whole step\n");
}

TEST(TopText, TakesAnythingAndShowsNothingThatATerminalObeys) {
  json timeline = a_timeline();
  json& ranks = timeline["steps"][1]["ranks"];
  ranks["rank 1"] = "no list";
  ranks["rank 2"] = {{"rollout", 0, "x", 0}, {1, 2, 3, 4}, {"\x1b[2J", 0, 900, 800}};
  const std::string text = top_text(a_run(), metrics_of({{"step", "?"}}), timeline, 60);
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << "a terminal would obey it";
  const std::string empty = top_text(a_run(), {{"lines", json::array()}}, {{"steps", json::array()}}, 60);
  EXPECT_EQ(empty, "a   running   step 0/40\nNo step has ended yet.\n");
}

}  // namespace
}  // namespace tandem::cli
