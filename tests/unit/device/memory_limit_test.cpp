// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace tandem::device {
namespace {

namespace fs = std::filesystem;

// Control groups as a kernel shows them, below a folder of this test.
class Groups : public testing::Test {
 protected:
  Groups() { fs::create_directories(root_); }
  ~Groups() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  int64_t left(const std::string& lines) {
    std::istringstream groups(lines);
    return left_in_groups(groups, root_.string());
  }
  const fs::path root_ = fs::path(testing::TempDir()) / "tandem_memory_limit_test";
};

TEST_F(Groups, TheLeastOfTheGroupAndAllAboveIsLeft) {
  write("job/memory.max", "1000\n");
  write("job/memory.current", "600\n");
  write("job/memory.stat", "anon 300\ninactive_file 100\nactive_file 50\n");
  write("job/step/memory.max", "5000\n");
  write("job/step/memory.current", "600\n");
  write("job/step/task/memory.max", "max\n");
  write("job/step/task/memory.current", "600\n");
  EXPECT_EQ(left("0::/job/step/task\n"), 550) << "files in memory make room";
  EXPECT_EQ(left("0::/other\n"), std::numeric_limits<int64_t>::max());
}

TEST_F(Groups, OfTheOlderKindToo) {
  write("memory/a/memory.limit_in_bytes", "800");
  write("memory/a/memory.usage_in_bytes", "300");
  EXPECT_EQ(left("5:cpu:/x\n4:memory:/a/b\n"), 500);
}

TEST_F(Groups, AContainerShowsItsOwnAsTheUppermost) {
  write("memory.max", "700");
  write("memory.current", "100");
  EXPECT_EQ(left("0::/\n"), 600);
  EXPECT_EQ(left("0::/not/seen/here\n"), 600);
}

}  // namespace
}  // namespace tandem::device
