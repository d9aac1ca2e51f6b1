// SPDX-License-Identifier: Apache-2.0
#include "oracle/suites.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "tandem/base/error.h"
#include "tests/temporary_folder.h"

namespace tandem::cli {
namespace {

// Runs a suite and returns how many cases passed; prints that, what was skipped and why, and each failure.
int64_t passed(const std::string& suite, const std::string& path) {
  Report report(std::cout);
  run_suite(suite, {path}, {}, report);
  std::cout << suite << " " << path << ": ";
  report.summary();
  EXPECT_EQ(report.num_failed(), 0) << suite << " " << path;
  return report.num_passed();
}

const std::string kVendored = std::string(TANDEM_SOURCE_DIR) + "/tests/oracles/";  // every clone has these: tests/oracles/README.md
const std::string kWhole = std::string(TANDEM_SOURCE_DIR) + "/../shared/oracles/";

// How many cases pass of a file or folder of either root. 0 stands for a file that the root has not, for the reason given.
struct Cases {
  const char *suite, *path;
  int64_t vendored, whole;
  const char* why_not_vendored = "";
};
constexpr const char* kNoTokenizer = "the tokenizer is not in this repository";
constexpr Cases kCases[] = {{"safetensors", "safetensors", 50, 50},
                            {"grader", "grader", 639, 639},
                            {"chat", "chat", 85, 200},
                            {"balance", "balance", 57, 90},
                            {"flops", "flops.json", 12, 12},
                            {"tokenizer", "tokenizer/qwen2_mini.json", 3, 3},
                            {"tokenizer", "tokenizer/qwen2.jsonl", 0, 450, kNoTokenizer},
                            {"tokenizer", "tokenizer/stream_decode.jsonl", 0, 108, kNoTokenizer},
                            {"tokenizer", "tokenizer/decode_any_ids.jsonl", 0, 60, kNoTokenizer},
                            {"tokenizer", "stories260k/tokenizer_cases.jsonl", 0, 70, kNoTokenizer}};

void check(const std::string& root, int64_t Cases::* expected) {
  for (const Cases& cases : kCases) {
    if (cases.*expected == 0)
      std::cout << cases.suite << " " << root << cases.path << ": " << cases.whole << " skipped (" << cases.why_not_vendored << ")\n";
    else
      EXPECT_EQ(passed(cases.suite, root + cases.path), cases.*expected) << root << cases.path;
  }
}

TEST(Oracle, TheVendoredCasesPass) { check(kVendored, &Cases::vendored); }

TEST(Oracle, TheWholeSetsPass) {
  if (!std::filesystem::exists(kWhole)) GTEST_SKIP() << "no " << kWhole << "; the vendored cases ran";
  check(kWhole, &Cases::whole);
}

TEST(Oracle, AnUnknownSuiteNamesTheNearest) {
  EXPECT_THROW(passed("tokeniser", kVendored + "tokenizer/qwen2_mini.json"), UserError);
  EXPECT_THROW(passed("grader", kVendored + "absent.jsonl"), UserError);
}

TEST(Oracle, AFileOfAnotherFormIsNamedWithTheKeyItLacks) {
  const test::TemporaryFolder folder("oracle_suites");
  const std::string file = folder / "tandem_kl.json";
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
