// SPDX-License-Identifier: Apache-2.0
#include "oracle/oracle_losses.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "../../error_text.h"

namespace tandem::cli {
namespace {

constexpr int kNumFiles = 13;  // of the sets of other projects: one for each formula

// Runs the files of a folder. Returns how many there are; `expected` cases pass, and none fails.
int run_folder(const std::filesystem::path& folder, int64_t expected) {
  std::cout << "losses " << folder << ": ";
  Report report(std::cout);
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path());
    run_losses(nlohmann::json::parse(in), entry.path().filename().string(), report);
    ++num_files;
  }
  report.summary();
  EXPECT_EQ(report.num_failed(), 0);
  EXPECT_EQ(report.num_passed(), expected);
  return num_files;
}

const std::filesystem::path kSource = TANDEM_SOURCE_DIR;

TEST(OracleLosses, TheVendoredCasesPass) { EXPECT_EQ(run_folder(kSource / "tests/oracles/losses", 214), kNumFiles); }

TEST(OracleLosses, TheWholeSetPasses) {
  const std::filesystem::path folder = kSource / "../shared/oracles/losses";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder << "; the vendored cases ran";
  EXPECT_EQ(run_folder(folder, 492), kNumFiles);
}

TEST(OracleLosses, OurOwnCasesPass) { EXPECT_EQ(run_folder(kSource / "tests/fixtures/losses", 2), 1); }

TEST(OracleLosses, AFileOfAnUnknownKindIsAnErrorThatNamesTheKinds) {
  Report report(std::cout);
  const auto file = nlohmann::json::parse(R"({"cases": [{"name": "a"}]})");
  const std::string error = test::error_of([&] { run_losses(file, "my_rank.json", report); });
  for (const char* part : {"my_rank.json", "`my_rank`", "group_advantages", "staleness"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
}

}  // namespace
}  // namespace tandem::cli
