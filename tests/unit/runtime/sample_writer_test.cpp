// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/sample_writer.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "../../temporary_folder.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/data/columns.h"
#include "tandem/queue/body/store.h"

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

/// Of two groups of two samples each.
data::Batch large_batch(int64_t step) {
  data::Batch batch{data::StepId{step}, data::PolicyVersion{step - 1}, {}};
  for (int64_t g = 0; g < 2; ++g) {
    data::Group group = batch_of(step).groups.front();
    group.id = data::GroupId{2 * step + g};
    group.prompt.ids = {1, static_cast<int32_t>(g)}, group.prompt.text = std::to_string(g) + "+1=";
    group.samples.push_back(group.samples.front());
    for (int64_t i = 0; i < 2; ++i) {
      data::Sample& sample = group.samples[static_cast<size_t>(i)];
      sample.id = data::sample_id(group.id, 2, i);
      sample.ids.assign(static_cast<size_t>(i + 1), static_cast<int32_t>(g + i));
      sample.logprobs.assign(static_cast<size_t>(i + 1), -0.25f), sample.versions.assign(static_cast<size_t>(i + 1), step - 1);
      sample.kept_mass = sample.logprobs, sample.routes = {static_cast<int16_t>(g)}, sample.text = std::string(static_cast<size_t>(i), 'x');
      sample.score = static_cast<double>(g) + 0.5 * static_cast<double>(i), sample.parts = {{"sum", sample.score}};
    }
    batch.groups.push_back(group);
  }
  data::Sample& greedy = batch.groups[1].greedy.emplace();
  greedy.scored = true, greedy.score = 0.75;
  return batch;
}

std::vector<data::Group> heads_of(const data::Batch& batch) {
  std::vector<data::Group> heads;
  for (const data::Group& group : batch.groups) heads.push_back(queue::head_of(group));
  return heads;
}

/// The samples with these places in their groups. Their log-probabilities are those of the rollout, halved.
SamplePart part_of(const data::Batch& batch, const std::vector<size_t>& places) {
  SamplePart part;
  for (const data::Group& whole : batch.groups) {
    data::Group group = whole;
    group.samples.clear();
    for (const size_t place : places)
      if (place < whole.samples.size()) group.samples.push_back(whole.samples[place]);
    if (places.front() != 0) group.prompt = {whole.prompt.row};
    for (const data::Sample& sample : group.samples) {
      std::vector<float>& logprobs = part.train_logprobs.emplace_back(sample.logprobs);
      for (float& each : logprobs) each /= 2;
    }
    part.groups.push_back(group);
  }
  return part;
}

void append(SampleWriter& writer, const data::Batch& batch, StepParts parts) {
  const std::vector<double> advantages(data::ids_of(batch.groups).size(), 0.0);
  writer.append({batch.step, batch.version, heads_of(batch)}, advantages, std::move(parts));
}

void append(SampleWriter& writer, int64_t step) { append(writer, batch_of(step), {{part_of(batch_of(step), {0})}, {}}); }

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
  append(writer, 1);
  const double begin = now_s();
  EXPECT_THROW(writer.finish([] { return true; }), PeerError);
  EXPECT_LT(now_s() - begin, 20);
}

TEST(SampleWriter, ARunGoesOnWhileTheFileIsBusy) {
  const test::TemporaryFolder folder("busy");
  const std::string file = folder / "samples.sqlite";
  SampleWriter writer(file, patient(60));
  constexpr int64_t kSteps = 30;
  {
    const Other other(file);
    const double begin = now_s();
    for (int64_t step = 1; step <= kSteps; ++step) append(writer, step);
    EXPECT_LT(now_s() - begin, 3) << "each would wait 0.2 s for the other writer";
    writer.flush();
    EXPECT_EQ(writer.num_samples(), 0) << "the flush has tried";
    EXPECT_EQ(writer.fault(), nullptr);
  }
  writer.finish({});
  EXPECT_EQ(writer.num_samples(), kSteps);
  EXPECT_EQ(data::SampleReader(file).steps().size(), static_cast<size_t>(kSteps));
}

TEST(SampleWriter, AFlushWaitsForAllThatWasAppended) {
  const test::TemporaryFolder folder("flushed");
  const std::string file = folder / "samples.sqlite";
  SampleWriter writer(file, patient(60));
  for (int64_t step = 1; step <= 50; ++step) {
    append(writer, step);
    if (step % 10 != 0) continue;
    writer.flush();
    EXPECT_EQ(data::SampleReader(file).steps().size(), static_cast<size_t>(step));
  }
}

TEST(SampleWriter, AFileThatStaysBusyIsAFault) {
  const test::TemporaryFolder folder("fault");
  const std::string file = folder / "samples.sqlite", saved = folder / "saved.sqlite";
  SampleWriter writer(file, patient(0.5));
  const Other other(file);
  append(writer, 1);
  append(writer, 2);
  const Deadline deadline = Deadline::after_s(30);
  while (!writer.fault() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_NE(writer.fault(), nullptr);
  EXPECT_THROW(std::rethrow_exception(writer.fault()), PeerError);
  writer.save_unwritten(saved);
  EXPECT_EQ(data::SampleReader(saved).steps().size(), 2u);
}

TEST(SampleWriter, AnAppendWaitsWhileStepsWaitAndNoneHasFailed) {
  const test::TemporaryFolder folder("bounded");
  SampleWriter writer(folder / "samples.sqlite", patient(60));
  const Other other(folder / "samples.sqlite");
  const double begin = now_s();
  for (int64_t step = 1; step <= 8; ++step) append(writer, step);
  EXPECT_GT(now_s() - begin, 0.15) << "the first is tried for 0.2 s";
}

TEST(SampleWriter, PartsOfSeveralRanksAreOneStep) {
  const test::TemporaryFolder folder("parts");
  const std::string file = folder / "samples.sqlite", alone = folder / "alone.sqlite";
  const data::Batch batch = large_batch(1);
  const SamplePart all = part_of(batch, {0, 1});
  data::SampleStore(alone).append(batch, std::vector<double>(4, 0.0), all.train_logprobs);
  SampleWriter writer(file, patient(10));
  writer.open_parts();
  const std::string other = part_file(folder.path(), batch.step, 3);
  write_part(other, pack(part_of(batch, {1})));
  append(writer, batch, {{part_of(batch, {0})}, {other}});
  writer.finish({});
  EXPECT_FALSE(fs::exists(other)) << "its rows are written";
  const auto found = data::SampleReader(file).groups({batch.step}, 0, 9), wanted = data::SampleReader(alone).groups({batch.step}, 0, 9);
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t g = 0; g < wanted.size(); ++g) {
    const std::vector<data::Group> one = {found[g].group}, same = {wanted[g].group};
    EXPECT_EQ(data::fields_of(one), data::fields_of(same));
    EXPECT_EQ(found[g].train_logprobs, wanted[g].train_logprobs);
  }
}

TEST(SampleWriter, WhatAPartLacksIsNotWrittenAndIsNoObstacleToACheckpoint) {
  const test::TemporaryFolder folder("lacks");
  const std::string saved = folder / "saved.sqlite";
  SampleWriter writer(folder / "samples.sqlite", patient(0.3));
  writer.open_parts();
  const data::Batch batch = large_batch(1);
  const std::string damaged = part_file(folder.path(), batch.step, 1), of_others = part_file(folder.path(), batch.step, 2);
  std::vector<std::byte> bytes = pack(part_of(batch, {1}));
  bytes.resize(bytes.size() / 2);
  write_part(damaged, bytes);
  write_part(of_others, pack(part_of(large_batch(7), {1})));
  for (const std::string& file : {damaged, of_others, std::string(folder / "missing"), std::string()}) {
    StepParts parts{{part_of(batch, {0})}, {}};
    if (!file.empty()) parts.files.push_back(file);
    append(writer, batch, parts);
  }
  append(writer, 2);
  writer.flush();
  EXPECT_EQ(writer.num_samples(), 0);
  writer.save_unwritten(saved);
  const auto steps = data::SampleReader(saved).steps();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, data::StepId{2});
  EXPECT_THROW(writer.finish({}), PeerError);
  EXPECT_NE(writer.fault(), nullptr);
}

TEST(SampleWriter, PartsThatAKilledStartLeftGo) {
  const test::TemporaryFolder folder("left");
  const std::string left = part_file(folder.path(), data::StepId{3}, 1);
  fs::create_directory(parts_dir(folder.path()));
  write_part(left, pack(part_of(batch_of(3), {0})));
  {
    SampleWriter writer(folder / "samples.sqlite", patient(10));
    EXPECT_FALSE(fs::exists(left));
    writer.open_parts();
    EXPECT_TRUE(fs::exists(parts_dir(folder.path())));
    append(writer, 1);
  }
  EXPECT_FALSE(fs::exists(parts_dir(folder.path())));
  EXPECT_EQ(data::SampleReader(folder / "samples.sqlite").steps().size(), 1u) << "what was appended is written at the end";
}

}  // namespace
}  // namespace tandem::runtime
