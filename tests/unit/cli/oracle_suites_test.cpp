// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/oracle/suites.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tandem/base/error.h"

namespace tandem::cli {
namespace {

// Runs a suite and returns how many cases passed; failures show what the suite prints.
int64_t passed(const std::string& suite, const std::string& file) {
  std::ostringstream out;
  Report report(out);
  run_suite(suite, {file}, {}, report);
  report.summary();
  EXPECT_EQ(report.num_failed(), 0) << out.str();
  return report.num_passed();
}

const std::string kFixtures = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/";
const std::string kShared = std::string(TANDEM_SOURCE_DIR) + "/../shared/oracles/";

TEST(Oracle, TheFixturesOfThisRepositoryPass) {
  EXPECT_EQ(passed("safetensors", kFixtures + "safetensors_cases.json"), 50);
  EXPECT_EQ(passed("tokenizer", kFixtures + "qwen2_mini.json"), 3);
  EXPECT_EQ(passed("grader", kFixtures + "hendrycks_is_equiv.jsonl"), 16);
  EXPECT_EQ(passed("grader", kFixtures + "slime_math.jsonl"), 33);
  EXPECT_EQ(passed("grader", kFixtures + "slime_deepscaler.jsonl"), 10);
  EXPECT_EQ(passed("grader", kFixtures + "slime_f1.jsonl"), 17);
  EXPECT_EQ(passed("grader", kFixtures + "slime_gpqa.jsonl"), 22);
  EXPECT_EQ(passed("chat", kFixtures + "chat/rendered.jsonl"), 17);
  EXPECT_EQ(passed("balance", kFixtures + "karmarkar_karp.json"), 90);
  EXPECT_EQ(passed("flops", kFixtures + "flops.json"), 12);
}

TEST(Oracle, TheWholeSharedSetsPass) {
  if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "no ../shared";
  EXPECT_EQ(passed("tokenizer", kShared + "tokenizer"), 621);
  EXPECT_EQ(passed("tokenizer", kShared + "stories260k/tokenizer_cases.jsonl"), 70);
  EXPECT_EQ(passed("safetensors", kShared + "safetensors"), 50);
  EXPECT_EQ(passed("grader", kShared + "grader"), 639);
  EXPECT_EQ(passed("chat", kShared + "chat"), 200);
  EXPECT_EQ(passed("balance", kShared + "balance"), 155);
  EXPECT_EQ(passed("flops", kShared + "flops.json"), 12);
}

TEST(Oracle, AnUnknownSuiteNamesTheNearest) {
  EXPECT_THROW(passed("tokeniser", kFixtures + "qwen2_mini.json"), UserError);
  EXPECT_THROW(passed("grader", kFixtures + "absent.jsonl"), UserError);
}

TEST(Oracle, AFileOfAnotherFormIsNamedWithTheKeyItLacks) {
  const std::string file = (std::filesystem::temp_directory_path() / "tandem_kl.json").string();
  const std::pair<const char*, const char*> suites[] = {{"losses", "cases"},  {"staleness", "cases"}, {"safetensors", "cases"},
                                                        {"balance", "cases"}, {"flops", "cases"},     {"tokenizer", "merges"}};
  for (const auto& [suite, key] : suites) {
    std::ofstream(file) << (std::string(suite) == "tokenizer" ? R"({"vocab": {}})" : R"([{"text": "x"}])");
    try {
      passed(suite, file);
      ADD_FAILURE() << suite;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("tandem_kl.json"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tandem::cli
