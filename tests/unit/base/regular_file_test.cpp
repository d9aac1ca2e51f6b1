// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <fstream>

#include "../../odd_files.h"
#include "tandem/base/json_file.h"

namespace tandem {
namespace {

const std::vector<std::string> kNone;

TEST(RegularFile, WhatIsNoFileIsRefusedAtOnceWhateverIsReadFromIt) {
  const test::TemporaryFolder folder("regular");
  const std::string path = folder / "config.json";
  EXPECT_EQ(test::opens_odd_files(path, [&] { read_file(path); }), kNone);
  EXPECT_EQ(test::opens_odd_files(path, [&] { read_json_object(path); }), kNone);
  EXPECT_EQ(test::opens_odd_files(path, [&] { require_regular_file(path, "expected a file"); }), kNone);
}

TEST(RegularFile, ALinkToAFileIsThatFile) {
  const test::TemporaryFolder folder("regular");
  std::ofstream(folder / "real") << "text";
  std::filesystem::create_symlink("real", folder / "link");
  EXPECT_EQ(read_file(folder / "link"), "text");
}

TEST(RegularFile, AFileThatIsTooLargeIsRefusedBeforeItIsRead) {
  const test::TemporaryFolder folder("regular");
  const std::string path = folder / "config.json";
  std::ofstream(path) << "{}";
  std::filesystem::resize_file(path, uintmax_t{1} << 40);  // a hole of 1 TiB
  for (const auto& read : {std::function<void()>([&] { read_file(path); }), std::function<void()>([&] { read_json_object(path); })}) {
    const std::string error = test::error_of(read);
    EXPECT_NE(error.find(path), std::string::npos);
    EXPECT_NE(error.find("is larger than"), std::string::npos) << error;
  }
}

TEST(RegularFile, ABoundIsExactAndHoldsForFilesThatHideTheirSize) {
  const test::TemporaryFolder folder("regular");
  const std::string path = folder / "file";
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}}) {
    std::ofstream(path) << std::string(size, 'x');
    EXPECT_EQ(RegularFile(path).read_whole(static_cast<int64_t>(size)), std::string(size, 'x'));
    EXPECT_THROW(RegularFile(path).read_whole(static_cast<int64_t>(size) - 1), UserError) << "a bound of -1 holds for nothing";
  }
  EXPECT_GT(RegularFile("/proc/self/status").read_whole().size(), 100u) << "its size is said to be 0";
  EXPECT_THROW(RegularFile("/proc/self/status").read_whole(10), UserError);
}

TEST(RegularFile, PartsAreReadWhereTheyStand) {
  const test::TemporaryFolder folder("regular");
  std::ofstream(folder / "file") << "0123456789";
  const RegularFile file(folder / "file");
  std::string part(4, ' ');
  EXPECT_EQ(file.read(3, part), 4);
  EXPECT_EQ(part, "3456");
  EXPECT_EQ(file.read(8, part), 2) << "the end";
  EXPECT_EQ(file.read(100, part), 0);
}

}  // namespace
}  // namespace tandem
