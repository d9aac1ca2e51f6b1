// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/oracle/oracle_losses.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "../../error_text.h"

namespace tandem::cli {
namespace {

// Passed and failed cases of the files of a folder.
std::pair<int64_t, int64_t> cases_of(const std::filesystem::path& folder) {
  Report report(std::cout);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path());
    run_losses(nlohmann::json::parse(in), entry.path().filename().string(), report);
  }
  report.summary();
  return {report.num_passed(), report.num_failed()};
}

TEST(OracleLosses, EveryReachedCasePasses) {
  const std::filesystem::path folder = std::filesystem::path(TANDEM_SOURCE_DIR) / "../shared/oracles/losses";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no oracles at " << folder;
  const auto [passed, failed] = cases_of(folder);
  EXPECT_EQ(failed, 0);
  EXPECT_GE(passed, 492);
}

TEST(OracleLosses, CasesOfTheRepositoryPass) {
  const auto [passed, failed] = cases_of(std::filesystem::path(TANDEM_SOURCE_DIR) / "tests/fixtures/losses");
  EXPECT_EQ(failed, 0);
  EXPECT_GE(passed, 2);
}

TEST(OracleLosses, AFileOfAnUnknownKindIsAnErrorThatNamesTheKinds) {
  Report report(std::cout);
  const auto file = nlohmann::json::parse(R"({"cases": [{"name": "a"}]})");
  const std::string error = test::error_of([&] { run_losses(file, "my_rank.json", report); });
  for (const char* part : {"my_rank.json", "`my_rank`", "group_advantages", "staleness"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
}

}  // namespace
}  // namespace tandem::cli
