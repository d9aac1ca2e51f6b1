// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/sample_writer.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>

#include "../../temporary_folder.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::runtime {
namespace {

namespace fs = std::filesystem;

data::Batch batch_of(int64_t step) {
  data::Group group;
  group.id = data::GroupId{step};
  group.prompt = {0, "1+1=", {1, 2}, "2", "sums"};
  data::Sample sample;
  sample.id = data::sample_id(group.id, 1, 0);
  sample.ids = {3};
  sample.logprobs = {-0.5f};
  sample.versions = {step - 1};
  sample.scored = true;
  group.samples.push_back(sample);
  return {data::StepId{step}, data::PolicyVersion{step - 1}, {group}};
}

/// Somebody who writes to the same file.
class Other {
 public:
  explicit Other(const std::string& path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &database_), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  }
  ~Other() { sqlite3_close(database_); }

 private:
  sqlite3* database_ = nullptr;
};

config::RunOptions patient(double seconds) {
  config::RunOptions options;
  options.samples_wait_s = seconds;
  return options;
}

TEST(SampleWriter, AnAdoptedStoreMayGoBeforeItsRowsAreWritten) {
  const test::TemporaryFolder folder("adopted");
  const std::string file = folder / "samples.sqlite", old = folder / "checkpoint.sqlite", next = folder / "next.sqlite";
  data::SampleStore(old).append(batch_of(1), std::vector<double>{0});
  SampleWriter writer(file, patient(10));
  {
    const Other other(file);
    writer.adopt(old);
    fs::remove(old);  // its checkpoint is pruned
    writer.save_unwritten(next);
    EXPECT_EQ(data::SampleReader(next).steps().size(), 1u) << "the next checkpoint has them";
  }
  writer.finish({});
  EXPECT_EQ(data::SampleReader(file).steps().size(), 1u);
  EXPECT_FALSE(fs::exists(file + ".adopted"));
}

TEST(SampleWriter, AnEndDoesNotWaitForABusyFileOnceAStopIsAskedFor) {
  const test::TemporaryFolder folder("stopped");
  SampleWriter writer(folder / "samples.sqlite", patient(60));
  const Other other(folder / "samples.sqlite");
  writer.append(batch_of(1), {0}, {});
  const double begin = now_s();
  EXPECT_THROW(writer.finish([] { return true; }), PeerError);
  EXPECT_LT(now_s() - begin, 20);
}

}  // namespace
}  // namespace tandem::runtime
