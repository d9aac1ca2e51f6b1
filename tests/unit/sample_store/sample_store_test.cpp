// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/sample_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>

#include "tandem/base/error.h"

namespace {
bool pretends_nfs = false;
}

// The store asks this for the kind of its file system, in place of the C library's.
extern "C" int statfs(const char* path, struct statfs* found) noexcept {
  const auto code = static_cast<int>(::syscall(SYS_statfs, path, found));
  if (pretends_nfs) found->f_type = 0x6969;
  return code;
}

namespace tandem::data {
namespace {

namespace fs = std::filesystem;

class SampleStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tandem_store_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = (folder_ / "samples.sqlite").string();
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
  std::string path_;
};

Batch batch_of(int64_t step, int64_t num_groups = 3) {
  Batch batch{StepId{step}, PolicyVersion{step - 1}, {}};
  for (int64_t g = 0; g < num_groups; ++g) {
    Group group;
    group.id = GroupId{step * 100 + g};
    group.prompt = {g, "12+3=\n\"" + std::to_string(g), {1, 2, static_cast<int32_t>(g)}, "15", "sums"};
    group.version = PolicyVersion{step - 2};
    for (int i = 0; i < 2; ++i) {
      Sample sample;
      sample.id = sample_id(group.id, 2, i);
      sample.ids = {7, 151643, static_cast<int32_t>(i)};
      sample.logprobs = {-0.1f, -1e-30f, -3.5f};
      if (i) sample.kept_mass = {-0.5f, 0.0f, -0.25f};
      sample.versions = {step - 2, step - 2, step - 1};
      sample.finish = i ? FinishReason::kLength : FinishReason::kStop;
      sample.text = std::string("answer\0tail", 11) + std::to_string(i);
      sample.scored = true;
      sample.score = 0.1 * i;
      sample.parts = {{"z_format", 0.2}, {"answer", 0.1 * i}};
      group.samples.push_back(sample);
    }
    batch.groups.push_back(group);
  }
  return batch;
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.version, b.version);
  ASSERT_EQ(a.groups.size(), b.groups.size());
  for (size_t g = 0; g < a.groups.size(); ++g) {
    const Group &x = a.groups[g], &y = b.groups[g];
    EXPECT_EQ(x.id, y.id);
    EXPECT_EQ(x.version, y.version);
    EXPECT_EQ(x.prompt.row, y.prompt.row);
    EXPECT_EQ(x.prompt.text, y.prompt.text);
    EXPECT_EQ(x.prompt.ids, y.prompt.ids);
    EXPECT_EQ(x.prompt.answer, y.prompt.answer);
    EXPECT_EQ(x.prompt.data_source, y.prompt.data_source);
    ASSERT_EQ(x.samples.size(), y.samples.size());
    for (size_t i = 0; i < x.samples.size(); ++i) {
      const Sample &s = x.samples[i], &t = y.samples[i];
      EXPECT_EQ(s.id, t.id);
      EXPECT_EQ(s.ids, t.ids);
      EXPECT_EQ(s.logprobs, t.logprobs);
      EXPECT_EQ(s.kept_mass, t.kept_mass);
      EXPECT_EQ(s.versions, t.versions);
      EXPECT_EQ(s.finish, t.finish);
      EXPECT_EQ(s.text, t.text);
      EXPECT_EQ(s.scored, t.scored);
      EXPECT_EQ(s.score, t.score);
      EXPECT_EQ(s.parts, t.parts);
    }
  }
}

TEST_F(SampleStoreTest, ABatchComesBackAsItWentIn) {
  SampleStore store(path_);
  const Batch batch = batch_of(4);
  const std::vector<double> advantages{1, -1, 2, -2, 3, -3};
  std::vector<std::vector<float>> train(6, {-0.2f, -0.3f, -0.4f});
  store.append(batch, advantages, train);
  const SampleReader reader(path_);  // while the writer is open
  expect_same(reader.batch(StepId{4}), batch);
  const auto page = reader.groups({StepId{4}}, 1, 1);
  ASSERT_EQ(page.size(), 1u);
  EXPECT_EQ(page[0].group.id, GroupId{401});
  EXPECT_EQ(page[0].trained_version, PolicyVersion{3});
  EXPECT_EQ(page[0].advantages, (std::vector<double>{2, -2}));
  EXPECT_EQ(page[0].train_logprobs[1], train[0]);
}

TEST_F(SampleStoreTest, TheScoreOfAGreedyAnswerIsKeptBesideItsGroup) {
  Batch batch = batch_of(4);
  Sample& greedy = batch.groups[1].greedy.emplace();
  greedy.scored = true, greedy.score = 0.75;
  {
    SampleStore store(path_);
    for (int i = 0; i < 2; ++i) store.append(batch, std::vector<double>(6, 0.0));  // a step that is done again
    store.append(batch_of(5), std::vector<double>(6, 0.0));
    store.truncate_after(StepId{4});
  }
  const Batch back = SampleReader(path_).batch(StepId{4});
  EXPECT_FALSE(back.groups.at(0).greedy);
  ASSERT_TRUE(back.groups.at(1).greedy);
  EXPECT_TRUE(back.groups[1].greedy->scored);
  EXPECT_EQ(back.groups[1].greedy->score, 0.75);
  EXPECT_EQ(SampleReader(path_).groups({StepId{4}}, 2, 1).size(), 1u) << "a page without that group";

  // As an earlier Tandem wrote it.
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "DROP TABLE greedy", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  EXPECT_FALSE(SampleReader(path_).batch(StepId{4}).groups.at(1).greedy);
  SampleStore(path_).append(batch, std::vector<double>(6, 0.0));  // a resume goes on in it
  EXPECT_TRUE(SampleReader(path_).batch(StepId{4}).groups.at(1).greedy);
}

int64_t whole_file_bytes(const std::string& path) {
  int64_t bytes = 0;
  for (const char* of : {"", "-wal"})
    if (fs::exists(path + of)) bytes += static_cast<int64_t>(fs::file_size(path + of));
  return bytes;
}

TEST_F(SampleStoreTest, TokensGoAndTheRestOfARowStays) {
  for (const bool later : {false, true}) {  // by a store from the start, or by one that comes later and keeps less
    fs::remove(path_);
    {
      SampleStore store(path_, later ? KeptTokens{} : KeptTokens{.last_steps = 3, .every_steps = 4});
      for (int64_t step = 1; step <= 9; ++step) store.append(batch_of(step), std::vector<double>(6, 0.5));
    }
    if (later) SampleStore(path_, {.last_steps = 3, .every_steps = 4}).append(batch_of(9), std::vector<double>(6, 0.5));
    const SampleReader reader(path_);
    EXPECT_EQ(reader.steps().size(), 9u);
    EXPECT_EQ(reader.whole_steps(), (std::vector<StepId>{StepId{4}, StepId{7}, StepId{8}, StepId{9}}));
    expect_same(reader.batch(StepId{4}), batch_of(4));
    expect_same(reader.batch(StepId{8}), batch_of(8));
    EXPECT_THROW((void)reader.batch(StepId{5}), UserError);
    const StoredGroup gone = reader.groups({StepId{5}, "", SampleOrder::kLongest}, 0, 10).at(0);
    const Sample kept = batch_of(5).groups[0].samples[1];
    const Sample& sample = gone.group.samples.at(1);
    EXPECT_EQ(gone.group.prompt.text, batch_of(5).groups[0].prompt.text);
    EXPECT_EQ(sample.finish, kept.finish);
    EXPECT_EQ(sample.score, kept.score);
    EXPECT_EQ(sample.parts, kept.parts);
    EXPECT_TRUE(sample.text.empty() && sample.ids.empty() && sample.logprobs.empty() && sample.versions.empty());
    const ToldSample& told = gone.told.at(1);
    EXPECT_FALSE(told.has_tokens);
    EXPECT_EQ(told.num_tokens, 3);
    EXPECT_EQ(told.oldest_version, 3);
    EXPECT_EQ(told.newest_version, 4);
    EXPECT_TRUE(reader.groups({StepId{9}}, 0, 1).at(0).told.at(0).has_tokens);
    EXPECT_EQ(reader.num_groups({StepId{5}, "answer"}), 0) << "a text that is gone is not found";
  }
}

TEST_F(SampleStoreTest, AFileOfBeforeHasAVersionForEachToken) {
  { SampleStore(path_).append(batch_of(2), std::vector<double>(6, 0.0)); }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  const char* as_before =
      "UPDATE samples SET versions = x'000000000000000000000000000000000100000000000000';"
      "ALTER TABLE samples DROP COLUMN prompt_tokens; ALTER TABLE samples DROP COLUMN response_tokens;"
      "ALTER TABLE samples DROP COLUMN oldest_version; ALTER TABLE samples DROP COLUMN newest_version";
  ASSERT_EQ(sqlite3_exec(database, as_before, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  sqlite3_close(database);
  expect_same(SampleReader(path_).batch(StepId{2}), batch_of(2));
  {
    SampleStore store(path_, {.last_steps = 1, .every_steps = 100});
    for (const int64_t step : {3, 4, 5}) store.append(batch_of(step), std::vector<double>(6, 0.0));
  }
  const SampleReader reader(path_);
  expect_same(reader.batch(StepId{2}), batch_of(2));
  expect_same(reader.batch(StepId{5}), batch_of(5));
  EXPECT_EQ(reader.whole_steps(), (std::vector<StepId>{StepId{2}, StepId{5}})) << "what does not tell its tokens keeps them";
}

// As a run's samples are: ids that hardly repeat, a text of four characters a token.
Batch long_batch(int64_t step, int64_t samples, int64_t tokens) {
  Batch batch{StepId{step}, PolicyVersion{step - 1}, {}};
  for (int64_t g = 0; g < samples; ++g) {
    Group& group = batch.groups.emplace_back();
    group.id = GroupId{step * samples + g};
    group.prompt = {g, std::string(800, 'q'), std::vector<int32_t>(200, 5), "15", "sums"};
    Sample& sample = group.samples.emplace_back();
    sample.id = sample_id(group.id, 1, 0);
    for (int64_t t = 0; t < tokens; ++t) sample.ids.push_back(static_cast<int32_t>((t * 7919 + g * 31 + step) % 151936));
    sample.logprobs.assign(static_cast<size_t>(tokens), -0.5f);
    sample.versions.assign(static_cast<size_t>(tokens), step - 1);
    sample.text = std::string(static_cast<size_t>(4 * tokens), 'x');
  }
  return batch;
}

// 200 steps of 128 answers of 2,048 tokens, by what run.samples_steps and run.samples_every are by default; a thirty-second part in every
// run of the tests, all of it by --gtest_also_run_disabled_tests.
void expect_under_a_gigabyte(const std::string& path, int64_t samples) {
  {
    SampleStore store(path, {.last_steps = 50, .every_steps = 10});
    const std::vector<double> advantages(static_cast<size_t>(samples), 0.5);
    for (int64_t step = 1; step <= 200; ++step) {
      const std::vector<std::vector<float>> train(static_cast<size_t>(samples), std::vector<float>(2048, -0.5f));
      store.append(long_batch(step, samples, 2048), advantages, train);
      if (step % 20 == 0) store.flush();
    }
  }
  std::cout << "200 steps of " << samples << " answers of 2,048 tokens: " << whole_file_bytes(path) << " bytes\n";
  EXPECT_LT(whole_file_bytes(path), 1'000'000'000 * samples / 128);
}
TEST_F(SampleStoreTest, ALongRunByDefaultTakesLessThanAGigabyteAThirtySecondPart) { expect_under_a_gigabyte(path_, 4); }
TEST_F(SampleStoreTest, DISABLED_ALongRunByDefaultTakesLessThanAGigabyte) { expect_under_a_gigabyte(path_, 128); }

// The disk takes no byte more, then it does.
TEST_F(SampleStoreTest, AFlushThatFailedStandsInNobodysWay) {
  SampleStore store(path_);
  const std::vector<double> advantages(6, 0.0);
  store.append(batch_of(1), advantages);
  const auto log_bytes = static_cast<rlim_t>(fs::file_size(path_ + "-wal"));
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full{log_bytes, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_THROW(store.flush(), PeerError);
  EXPECT_THROW(store.append(batch_of(2), advantages), PeerError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  store.append(batch_of(2), advantages);
  store.flush();
  EXPECT_EQ(SampleReader(path_).batch(StepId{2}).groups.size(), 3u);
}

// Without a write-ahead log a reader keeps every writer waiting; nothing of the writer's stays open meanwhile.
TEST_F(SampleStoreTest, OnASharedDiskAReaderHoldsUpWritesButNoFlush) {
  pretends_nfs = true;
  SampleStore store(path_);
  pretends_nfs = false;
  const std::vector<double> advantages(6, 0.0);
  store.append(batch_of(1), advantages);
  EXPECT_FALSE(fs::exists(path_ + "-wal"));
  sqlite3* reader = nullptr;
  ASSERT_EQ(sqlite3_open_v2(path_.c_str(), &reader, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM samples", nullptr, nullptr, nullptr), SQLITE_OK);
  store.flush();
  EXPECT_THROW(store.append(batch_of(2), advantages), PeerError);
  sqlite3_close(reader);
  store.append(batch_of(2), advantages);
  EXPECT_EQ(SampleReader(path_).batch(StepId{2}).groups.size(), 3u);
}

TEST_F(SampleStoreTest, ANaNScoreStaysNaN) {
  SampleStore store(path_);
  Batch batch = batch_of(1, 1);
  batch.groups[0].samples[0].score = std::nan("");
  store.append(batch, std::vector<double>{0, 0});
  EXPECT_TRUE(std::isnan(SampleReader(path_).batch(StepId{1}).groups[0].samples[0].score));
}

TEST_F(SampleStoreTest, DroppedGroupsOfLaterStepsMayBeDroppedAgain) {
  SampleStore store(path_);
  store.append_dropped(StepId{1}, std::vector<GroupId>{GroupId{3}, GroupId{5}});
  store.append_dropped(StepId{2}, std::vector<GroupId>{GroupId{7}});
  EXPECT_THROW(store.append_dropped(StepId{3}, std::vector<GroupId>{GroupId{5}}), PeerError);  // nothing is dropped twice
  store.truncate_after(StepId{1});
  EXPECT_NO_THROW(store.append_dropped(StepId{2}, std::vector<GroupId>{GroupId{7}}));
}

TEST_F(SampleStoreTest, ResumeDropsLaterStepsAndAStepWrittenTwiceIsThereOnce) {
  SampleStore store(path_);
  for (int64_t step = 1; step <= 4; ++step) {
    store.append(batch_of(step), std::vector<double>(6, 0.0));
    store.append_evals(StepId{step}, std::vector<EvalAnswer>{{0, "p", "a", "r", 1.0}, {1, "p", "a", "r", 0.0}});
  }
  store.truncate_after(StepId{2});
  store.append(batch_of(2, 1), std::vector<double>(2, 0.0));
  store.flush();
  const SampleReader reader(path_);
  const auto steps = reader.steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].num_groups, 3);
  EXPECT_EQ(steps[0].num_samples, 6);
  EXPECT_DOUBLE_EQ(steps[0].mean_score, 0.05);
  EXPECT_EQ(steps[1].num_groups, 1);
  ASSERT_EQ(reader.eval_steps(0.5).size(), 2u);
  EXPECT_EQ(reader.eval_steps(0.5)[1].mean_score, 0.5);
  EXPECT_EQ(reader.eval_steps(1)[1].right_share, 0.5);
  EXPECT_EQ(reader.eval_steps(1.5)[1].right_share, 0);
  EXPECT_EQ(reader.eval_steps(0)[1].right_share, 1);
  EXPECT_EQ(reader.evals(StepId{1}, 1, 10).at(0).row, 1);
}

TEST_F(SampleStoreTest, WhatCannotBeReadIsTheUsersError) {
  EXPECT_THROW(SampleReader((folder_ / "none.sqlite").string()), UserError);
  std::ofstream(folder_ / "text.sqlite") << std::string(5000, 'x');
  EXPECT_THROW(SampleReader((folder_ / "text.sqlite").string()), UserError);
  SampleStore store(path_);
  store.append(batch_of(1), std::vector<double>(6, 0.0));
  EXPECT_THROW(SampleReader(path_).batch(StepId{9}), UserError);
  EXPECT_THROW(SampleStore("/proc/none/samples.sqlite"), UserError);
}

TEST_F(SampleStoreTest, AWrongNumberOfAdvantagesLeavesNothingBehind) {
  SampleStore store(path_);
  EXPECT_THROW(store.append(batch_of(1), std::vector<double>(5, 0.0)), InternalError);
  EXPECT_TRUE(SampleReader(path_).steps().empty());
}

std::vector<int64_t> ids_of(const std::vector<StoredGroup>& groups) {
  std::vector<int64_t> ids;
  for (const StoredGroup& it : groups) ids.push_back(value(it.group.id));
  return ids;
}

// One group for each list of scores; the id says which.
Batch scored_batch(const std::vector<std::vector<double>>& scores) {
  Batch batch{StepId{1}, PolicyVersion{0}, {}};
  for (const auto& of_group : scores) {
    Group group;
    group.id = GroupId{std::ssize(batch.groups)};
    group.prompt = {0, "Sum of " + std::to_string(batch.groups.size()), {1}, "Gold 100%", "sums"};
    for (const double score : of_group) {
      Sample sample;
      sample.id = sample_id(group.id, 2, std::ssize(group.samples));
      sample.ids.assign(static_cast<size_t>(1 + 10 * score), 7);
      sample.text = score > 0.5 ? "it is_right" : "no idea";
      sample.score = score;
      group.samples.push_back(sample);
    }
    batch.groups.push_back(group);
  }
  return batch;
}

TEST_F(SampleStoreTest, GroupsComeInTheOrderAndOfTheTextThatIsAskedFor) {
  SampleStore(path_).append(scored_batch({{0.5, 0.5}, {0, 1}, {1, 1}, {0, 0.2}, {0.4, 0.5}}), std::vector<double>(10, 0.0));
  const SampleReader reader(path_);
  const auto ordered = [&](SampleOrder order) { return ids_of(reader.groups({StepId{1}, "", order}, 0, 100)); };
  EXPECT_EQ(ordered(SampleOrder::kById), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(ordered(SampleOrder::kLowestScore), (std::vector<int64_t>{3, 4, 0, 1, 2})) << "0 and 1 have the same mean";
  EXPECT_EQ(ordered(SampleOrder::kHighestScore), (std::vector<int64_t>{2, 0, 1, 4, 3}));
  EXPECT_EQ(ordered(SampleOrder::kWidestSpread), (std::vector<int64_t>{1, 3, 4, 0, 2}));
  EXPECT_EQ(ordered(SampleOrder::kLongest), (std::vector<int64_t>{1, 2, 0, 4, 3}));
  EXPECT_EQ(ids_of(reader.groups({StepId{1}, "", SampleOrder::kHighestScore}, 1, 2)), (std::vector<int64_t>{0, 1})) << "a page";

  const auto with = [&](const std::string& text) {
    const GroupQuery query{StepId{1}, text};
    const auto found = ids_of(reader.groups(query, 0, 100));
    EXPECT_EQ(reader.num_groups(query), std::ssize(found)) << text;
    return found;
  };
  EXPECT_EQ(with("sum OF 3"), (std::vector<int64_t>{3})) << "of the prompt, in any case";
  EXPECT_EQ(with("is_right"), (std::vector<int64_t>{1, 2})) << "of one response of a group";
  EXPECT_EQ(with("gold 100%"), (std::vector<int64_t>{0, 1, 2, 3, 4})) << "of the expected answer";
  EXPECT_EQ(with("is%right"), (std::vector<int64_t>{})) << "no character means another";
  EXPECT_EQ(with("' OR 1 --"), (std::vector<int64_t>{}));
  EXPECT_EQ(reader.groups({StepId{1}, "is_right"}, 0, 100).at(0).group.samples.size(), 2u) << "the group is whole";
  EXPECT_EQ(reader.num_groups({StepId{2}}), 0);
}

TEST_F(SampleStoreTest, AnswersKnowTheirSetAndOlderFilesHaveNone) {
  const auto run_sql = [&](const char* sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
    sqlite3_close(database);
  };
  { SampleStore store(path_); }
  run_sql("ALTER TABLE evals DROP COLUMN eval_set; ALTER TABLE evals DROP COLUMN question; "
          "INSERT INTO evals VALUES (0, 4, 'p', 'a', 'r', 1.0)");  // as before there were sets
  {
    const SampleReader reader(path_);
    EXPECT_EQ(reader.evals(StepId{0}, 0, 10).at(0).set, "");
    EXPECT_TRUE(reader.eval_sets(0.5).empty());
    EXPECT_EQ(reader.counts({StepId{0}}).num_answers, 1);
    EXPECT_EQ(reader.compared({StepId{0}}, 0, 10).at(0).now.question, "");
  }
  {
    SampleStore store(path_);
    const std::vector<EvalAnswer> answers{{0, "p", "a", "r", 1.0, "x"}, {1, "p", "a", "r", 0.0, "x"}, {2, "p", "a", "s", 0.6, "y", "q"}};
    store.append_evals(StepId{2}, answers);
  }
  const SampleReader reader(path_);
  EXPECT_EQ(reader.evals(StepId{0}, 0, 10).at(0).set, "") << "rows of before stay";
  EXPECT_EQ(reader.evals(StepId{2}, 0, 10).at(2).set, "y");
  const std::vector<EvalSetSummary> sets = reader.eval_sets(0.5);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "x");
  EXPECT_EQ(sets[0].right_share, 0.5);
  EXPECT_EQ(sets[1].num_answers, 1);
  EXPECT_EQ(sets[1].mean_score, 0.6);
  EXPECT_EQ(reader.compared({.step = StepId{2}, .set = "y"}, 0, 10).at(0).now.response, "s");
  EXPECT_EQ(reader.compared({.step = StepId{2}, .set = "y"}, 0, 10).at(0).now.question, "q");
  EXPECT_EQ(reader.counts({.step = StepId{2}, .set = "x"}).num_answers, 2);
}

TEST_F(SampleStoreTest, TwoEvaluationsSayWhatBecameRightAndWhatBecameWrong) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  {
    SampleStore store(path_);
    const std::vector<EvalAnswer> before{{0, "a", "1", "x", 0},       {1, "b", "2", "two", 1},   {2, "c", "3", "y", 0},
                                         {3, "d", "4", "z", none},    {5, "g", "7", "first", 0}, {5, "g", "7", "second", 1}};
    const std::vector<EvalAnswer> now{{3, "d", "4", "four", 0.7}, {0, "a", "1", "one", 1},   {1, "b", "2", "w", 0.5},
                                      {2, "c", "3", "v", 0.4},    {4, "new", "6", "six", 1}, {5, "g", "7", "third", 1},
                                      {5, "g", "7", "fourth", none}};
    store.append_evals(StepId{0}, before);
    store.append_evals(StepId{9}, now);
  }
  const SampleReader reader(path_);
  const auto rows = [&](AnswerQuery query) {
    std::vector<std::string> out;
    for (const ComparedAnswer& it : reader.compared(query, 0, 100))
      out.push_back((it.before ? it.before->response : "-") + ">" + it.now.response);
    EXPECT_EQ(reader.counts(query).num_found, std::ssize(out));
    return out;
  };
  using Texts = std::vector<std::string>;
  AnswerQuery query{StepId{9}, StepId{0}, 0.7};
  EXPECT_EQ(rows(query), (Texts{"x>one", "two>w", "y>v", "z>four", "->six", "first>third", "second>fourth"}));
  query.kind = AnswerKind::kBecameRight;
  EXPECT_EQ(rows(query), (Texts{"x>one", "z>four", "first>third"})) << "what was not asked before did not become right";
  query.kind = AnswerKind::kBecameWrong;
  EXPECT_EQ(rows(query), (Texts{"two>w", "second>fourth"}));
  query.kind = AnswerKind::kWrong;
  EXPECT_EQ(rows(query), (Texts{"two>w", "y>v", "second>fourth"})) << "a score that is no number is wrong";
  query.kind = AnswerKind::kRight;
  EXPECT_EQ(rows(query), (Texts{"x>one", "z>four", "->six", "first>third"}));
  query.text = "SIX";
  EXPECT_EQ(rows(query), (Texts{"->six"}));
  query.text = "first";
  EXPECT_EQ(rows(query), (Texts{})) << "the answer of before is not searched";

  query = {StepId{9}, StepId{0}, 0.7};
  const AnswerCounts counts = reader.counts(query);
  EXPECT_EQ(counts.num_answers, 7);
  EXPECT_EQ(counts.num_right, 4);
  EXPECT_EQ(counts.num_compared, 6);
  EXPECT_EQ(counts.num_became_right, 3);
  EXPECT_EQ(counts.num_became_wrong, 2);
  query.right_at = 0.5;
  EXPECT_EQ(reader.counts(query).num_became_wrong, 1) << "0.5 is right then";
  query.order = SampleOrder::kWidestSpread;
  EXPECT_EQ(rows(query).at(0), "x>one");
  query.order = SampleOrder::kHighestScore;
  EXPECT_EQ(rows(query).at(3), "z>four");

  query = {StepId{9}, std::nullopt, 0.7};
  EXPECT_EQ(rows(query), (Texts{"->one", "->w", "->v", "->four", "->six", "->third", "->fourth"}));
  EXPECT_EQ(reader.counts(query).num_compared, 0);
  query.kind = AnswerKind::kBecameWrong;
  EXPECT_EQ(rows(query), (Texts{}));
}

}  // namespace
}  // namespace tandem::data
