// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/run_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "../../error_text.h"
#include "../../latest_checkpoint.h"
#include "../../small_files.h"
#include "../../temporary_folder.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/file/durable_file.h"

namespace {
bool is_full = false;
}

// The C++ library asks this for the room on a disk, in place of the C library's.
extern "C" int statvfs(const char* path, struct statvfs* found) noexcept {
  struct statfs whole {};
  const auto code = static_cast<int>(::syscall(SYS_statfs, path, &whole));
  *found = {};
  found->f_bsize = found->f_frsize = static_cast<unsigned long>(whole.f_bsize);
  if (!is_full) found->f_blocks = whole.f_blocks, found->f_bfree = whole.f_bfree, found->f_bavail = whole.f_bavail;
  return code;
}

namespace tandem::checkpoint {
namespace {

using test::TemporaryFolder;
namespace fs = std::filesystem;

void save(CheckpointWriter& writer, int64_t step, const std::string& content = "state") {
  const std::string tmp = writer.begin(step);
  fs::create_directories(tmp + "/hf");
  std::ofstream(tmp + "/hf/model") << content;
  std::ofstream(tmp + "/optimizer") << content << step;
  writer.commit(step, sums_of(tmp, files_of(tmp)));
}

TEST(RunState, TheNewestCommittedStepIsFound) {
  const TemporaryFolder folder("commit");
  CheckpointWriter writer(folder.path(), 2);
  EXPECT_FALSE(find_latest(folder.path()));
  EXPECT_FALSE(find_latest(folder / "absent"));
  for (int64_t step : {1, 2, 10}) save(writer, step);
  EXPECT_EQ(find_latest(folder.path())->step, 10);
  EXPECT_EQ(fs::read_symlink(folder / "latest"), "step_10");
  EXPECT_FALSE(fs::exists(folder / "step_1"));  // only two are kept
  EXPECT_TRUE(fs::exists(folder / "step_2"));
  for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
}

TEST(RunState, AnAttemptWithoutCommitCountsForNothing) {
  const TemporaryFolder folder("attempt");
  CheckpointWriter writer(folder.path(), 0);
  save(writer, 1);
  std::ofstream(writer.begin(2) + "/half") << "x";
  EXPECT_EQ(find_latest(folder.path())->step, 1);
  EXPECT_TRUE(fs::is_empty(writer.begin(2)));
  writer.abandon(2);
  EXPECT_FALSE(fs::exists(writer.tmp_path(2)));
}

TEST(RunState, DamagedCheckpointsArePassedOver) {
  const std::function<void(const std::string&)> damages[] = {
      [](const std::string& p) { std::ofstream(p + "/hf/model") << "stale"; },
      [](const std::string& p) { fs::resize_file(p + "/optimizer", 2); },
      [](const std::string& p) { fs::remove(p + "/optimizer"); },
      [](const std::string& p) { fs::remove(p + "/manifest.json"); },
      [](const std::string& p) { fs::resize_file(p + "/manifest.json", 20); },
  };
  for (const auto& damage : damages) {
    const TemporaryFolder folder("damage");
    CheckpointWriter writer(folder.path(), 0);
    save(writer, 1);
    save(writer, 2);
    damage(writer.path(2));
    EXPECT_NE(manifest_fault(writer.path(2)), "");
    ASSERT_TRUE(find_latest(folder.path()));
    EXPECT_EQ(find_latest(folder.path())->step, 1);
  }
}

void write_format(const std::string& checkpoint, const nlohmann::json& number) {
  const std::string path = checkpoint + "/manifest.json";
  nlohmann::json manifest = read_json_object(path);
  if (number.is_null()) manifest.erase("format");
  else manifest["format"] = number;
  write_file(path, manifest.dump());
}

TEST(RunState, AManifestThatIsNoFileOrNestsWithoutEndIsAFault) {
  const TemporaryFolder folder("odd_manifest");
  const std::string manifest = folder / "manifest.json";
  ::mkfifo(manifest.c_str(), 0600);
  EXPECT_EQ(manifest_fault(folder.path()), "it has no manifest");
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("/dev/zero", manifest);
  EXPECT_EQ(manifest_fault(folder.path()), "it has no manifest");
  std::filesystem::remove(manifest);
  std::ofstream(manifest) << R"({"files":)" << std::string(1'000'000, '[') << std::string(1'000'000, ']') << "}";
  EXPECT_EQ(manifest_fault(folder.path()), "its manifest is damaged");
}

TEST(RunState, AManifestWithoutANumberIsOfAnOlderProgramAndWhole) {
  const TemporaryFolder folder("older");
  CheckpointWriter writer(folder.path(), 0);
  save(writer, 1);
  EXPECT_EQ(read_json_object(writer.path(1) + "/manifest.json").at("format"), 1);
  write_format(writer.path(1), nullptr);
  EXPECT_EQ(find_latest(folder.path())->step, 1);
}

TEST(RunState, AManifestOfANewerFormatIsRefusedAndNotPassedOver) {
  const TemporaryFolder folder("newer");
  CheckpointWriter writer(folder.path(), 0);
  save(writer, 1);
  save(writer, 2);
  for (const nlohmann::json& number : {nlohmann::json(2), nlohmann::json(0), nlohmann::json("new")}) {
    write_format(writer.path(2), number);
    const std::string error = test::error_of([&] { find_latest(folder.path()); });
    EXPECT_NE(error.find("step_2/manifest.json: has format " + number.dump() + " (this program reads 1"), std::string::npos) << error;
  }
}

TEST(RunState, AResumedRunReplacesTheHistoryItLeft) {
  const TemporaryFolder folder("replace");
  CheckpointWriter writer(folder.path(), 1);
  save(writer, 4);
  save(writer, 6);
  save(writer, 5, "again");
  EXPECT_EQ(find_latest(folder.path())->step, 5);
  EXPECT_FALSE(fs::exists(writer.path(6)));
  save(writer, 5, "third");
  EXPECT_EQ(manifest_fault(writer.path(5)), "");
}

// A process saves one step over and over; this one looks, and kills it in the end.
TEST(RunState, AStepThatIsSavedAgainHasAWholeCheckpointAtEveryMoment) {
  const TemporaryFolder folder("moment");
  CheckpointWriter writer(folder.path(), 1);
  save(writer, 5);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) save(writer, 5);
  }
  int64_t looks = 0;
  for (const Deadline end = Deadline::after_s(2); !end.passed(); ++looks)
    if (!fs::exists(writer.path(5) + "/manifest.json")) {
      ADD_FAILURE() << "no checkpoint at look " << looks;
      break;
    }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_GT(looks, 100);
  ASSERT_TRUE(find_latest(folder.path()));
  save(writer, 5);
  for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
}

// Where files cannot be exchanged, a kill leaves the new checkpoint beside the old one, or alone.
TEST(RunState, ANewCheckpointBesideTheOldOneCountsAndTakesItsPlace) {
  for (const bool old_is_there : {true, false}) {
    const TemporaryFolder folder("beside");
    CheckpointWriter writer(folder.path(), 0);
    save(writer, 4);
    save(writer, 5, "new");
    fs::rename(writer.path(5), writer.path(5) + ".new");
    if (old_is_there) fs::copy(writer.path(5) + ".new", writer.path(5), fs::copy_options::recursive);
    ASSERT_TRUE(find_latest(folder.path()));
    EXPECT_EQ(find_latest(folder.path())->path, writer.path(5) + ".new");
    EXPECT_EQ(find_latest(folder.path())->step, 5);
    save(writer, 5, "newest");
    EXPECT_EQ(find_latest(folder.path())->path, writer.path(5));
    EXPECT_FALSE(fs::exists(writer.path(5) + ".new"));
    EXPECT_EQ(read_file(writer.path(5) + "/hf/model"), "newest");
  }
}

TEST(RunState, WhatAKillLeftOfARemovalGoesWithTheNextCheckpoint) {
  const TemporaryFolder folder("leftovers");
  CheckpointWriter writer(folder.path(), 2);
  save(writer, 1);
  for (const char* left : {"step_0.old.tmp", "step_9.tmp", "step_1.replaced.tmp", "step_12.new.old.tmp"})
    fs::create_directories(folder / left);
  save(writer, 2);
  for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
}

TEST(RunState, AManifestThatNamesNoFileOrAnotherStepIsNoCheckpoint) {
  const TemporaryFolder folder("empty");
  CheckpointWriter writer(folder.path(), 0);
  save(writer, 1);
  save(writer, 2);
  nlohmann::json manifest = read_json_object(writer.path(2) + "/manifest.json");
  const nlohmann::json whole = manifest;
  manifest["files"] = nlohmann::json::object();
  write_file(writer.path(2) + "/manifest.json", manifest.dump());
  EXPECT_EQ(find_latest(folder.path())->step, 1);
  const std::string file = whole["files"].begin().key();
  for (const nlohmann::json& entry : {nlohmann::json::array(), nlohmann::json(7), nlohmann::json(), nlohmann::json({{"bytes", "many"}})}) {
    manifest["files"] = whole["files"];
    manifest["files"][file] = entry;
    write_file(writer.path(2) + "/manifest.json", manifest.dump());
    EXPECT_NE(manifest_fault(writer.path(2)), "") << entry;
  }
  manifest["files"][file] = whole["files"][file];
  manifest["files"][file]["checksum"] = 5;
  write_file(writer.path(2) + "/manifest.json", manifest.dump());
  EXPECT_EQ(manifest_fault(writer.path(2)), file + " does not match its checksum");
  write_file(writer.path(2) + "/manifest.json", whole.dump());
  fs::rename(writer.path(2), writer.path(7));
  EXPECT_EQ(find_latest(folder.path())->step, 1);
}

TEST(RunState, RanksReadAShareOfTheFilesAndFindEveryFault) {
  const TemporaryFolder folder("share");
  CheckpointWriter writer(folder.path(), 0);
  save(writer, 1);
  std::ofstream(writer.path(1) + "/optimizer") << "other";
  int64_t faults = 0;
  for (int rank = 0; rank < 3; ++rank) faults += !manifest_fault(writer.path(1), {rank, 3}).empty();
  EXPECT_EQ(faults, 1);
  std::ofstream(writer.begin(2) + "/file") << "x";
  EXPECT_THROW(writer.commit(2, {}), PeerError) << "a file whose checksum no rank told";
}

TEST(RunState, LatestNamesTheCheckpointThatTheRunGoesOnFrom) {
  const TemporaryFolder folder("latest");
  {
    CheckpointWriter writer(folder.path(), 0);
    for (int64_t step : {1, 2}) save(writer, step);
  }
  fs::remove(folder / "latest");
  fs::create_directory_symlink("step_1", folder / "latest");  // as a kill between the rename and the link leaves it
  CheckpointWriter resumed(folder.path(), 0);
  resumed.goes_on_from(*find_latest(folder.path()));
  EXPECT_EQ(fs::read_symlink(folder / "latest"), "step_2");
}

TEST(RunState, AShortDiskNeverCostsTheLastWholeCheckpoint) {
  const TemporaryFolder folder("short");
  {
    CheckpointWriter writer(folder.path(), 3);
    for (int64_t step : {1, 2, 3}) save(writer, step);
  }
  std::ofstream(folder / "step_3/optimizer") << "damaged";
  CheckpointWriter resumed(folder.path(), 2);
  resumed.goes_on_from(*find_latest(folder.path()));
  EXPECT_EQ(fs::read_symlink(folder / "latest"), "step_2") << "no damaged one";
  is_full = true;
  resumed.begin(3);
  is_full = false;
  EXPECT_EQ(find_latest(folder.path())->step, 2);
  EXPECT_FALSE(fs::exists(folder / "step_3")) << "a damaged one goes first";
  EXPECT_FALSE(fs::exists(folder / "step_1")) << "the next commit would remove it";
}

TEST(RunState, AFullDiskLeavesThePreviousCheckpoint) {
  const TemporaryFolder folder("full");
  CheckpointWriter writer(folder.path(), 0);
  save(writer, 1);
  const std::string tmp = writer.begin(2);
  {
    const test::SmallFiles limit(1024);
    EXPECT_THROW(write_durable(tmp + "/state", std::string(100000, 'x')), PeerError);
  }
  EXPECT_EQ(find_latest(folder.path())->step, 1);
}

}  // namespace
}  // namespace tandem::checkpoint
