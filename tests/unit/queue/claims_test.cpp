// SPDX-License-Identifier: Apache-2.0
// What a desk of workers believes of a client, and what costs it its place: others go on unharmed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tandem/queue/body/body.h"
#include "tandem/queue/desk.h"

namespace tandem::queue {
namespace {

constexpr int64_t kSamples = 2;  // of a group

// A desk of workers, and one that joined it.
struct Generating {
  Generating() {
    desk.serve_workers(true, {.group_size = kSamples, .prompt_tokens = 10, .response_tokens = 6, .vocab_size = 100});
    join();
  }
  void join() { worker = std::get<answer::Joined>(call(call::Join{"store"}).what).worker; }
  Answer call(decltype(Call::verb) verb) {
    return desk.answer({Incarnation{0}, worker, ++number, std::move(verb), key}, 0, from).value();
  }
  Lease lease() { return std::get<answer::Leased>(call(call::LeaseGroups{1, controller.queue().version()}).what).leases.at(0); }
  Controller controller{{.groups_per_step = 1, .group_size = kSamples, .staleness = 1}, {10, Incarnation{0}}};
  Desk desk{controller, Incarnation{0}, ""};
  WorkerId worker{};
  int64_t number = 0;
  ClientKey key{1, 2};
  Origin from{"first line", "10.0.0.1"};
};

// What a group of it says of itself, and of the bodies of its samples.
data::Group scored_head(GroupId group) {
  data::Group head{group, {}, {}, std::vector<data::Sample>(kSamples)};
  for (int64_t i = 0; i < kSamples; ++i) {
    data::Sample& sample = head.samples[static_cast<size_t>(i)];
    sample.id = data::sample_id(group, kSamples, i);
    sample.scored = true, sample.score = 1, sample.parts = {{"regex", 1}};
  }
  return head;
}
std::vector<int64_t> measures_of_first(int64_t prompt = 3) { return {prompt, 4, 4, 0, 4, 0, 4, 0, 9, 0, 0, 0, 0, 0, 4}; }
std::vector<int64_t> usual_measures() {
  std::vector<int64_t> both = measures_of_first();
  const std::vector<int64_t> second = measures_of_first(0);
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

bool is_refused(const Answer& answer) { return std::holds_alternative<answer::Refused>(answer.what); }

TEST(Door, WhoGeneratesTakesNoBatch) {
  Generating job;
  EXPECT_TRUE(is_refused(job.call(call::Take{StepId{7}, PolicyVersion{0}})));
  EXPECT_TRUE(is_refused(job.call(call::Commit{StepId{1}, PolicyVersion{1}})));
  EXPECT_TRUE(is_refused(job.call(call::Lose{{GroupId{0}}, ""})));
  EXPECT_EQ(job.controller.queue().version(), PolicyVersion{0});
}

// What would be read beyond its end, or end the run, were it trained.
TEST(Door, ABodyThatCannotBeIsRefused) {
  const std::vector<int64_t> whole = measures_of_first(), second = measures_of_first(0);
  const auto with = [&](size_t field, int64_t value) {
    std::vector<int64_t> changed = whole;
    changed[field] = value;
    return changed;
  };
  EXPECT_EQ(num_measures(), std::ssize(whole));
  for (const auto& [measures, is_right] :
       {std::pair(whole, true), std::pair(with(kKeptMass, 4), true), std::pair(with(kLogprobs, 5), false),
        std::pair(with(kLogprobs, 3), false), std::pair(with(kVersions, 3), false), std::pair(with(kKeptMass, 2), false),
        std::pair(with(kPromptIds, 0), false), std::pair(with(kPromptIds, 11), false), std::pair(with(kText, 5000), true),
        std::pair(with(kText, 6000), false), std::pair(with(kAnswer, 1), false), std::pair(with(kPromptText, 1), false),
        std::pair(with(kResponse, 0), false), std::pair(with(kRoutes, -1), false), std::pair(with(kRoutes, int64_t{1} << 41), false),
        std::pair(with(12, -1), false), std::pair(with(13, 1), false), std::pair(with(kTrainable, 4), true),
        std::pair(with(kTrainable, 3), false), std::pair(with(14, 3), false), std::pair(with(14, 0), false),
        std::pair(with(14, 5), false)}) {
    Generating job;
    const Lease lease = job.lease();
    std::vector<int64_t> both = measures;
    both.insert(both.end(), second.begin(), second.end());
    const Answer put = job.call(call::Put{{lease.number}, {scored_head(lease.group)}, both});
    EXPECT_EQ(is_refused(put), !is_right) << testing::PrintToString(measures);
    if (is_right) EXPECT_EQ(job.desk.report_clients().at(0).tokens, 8);
  }
}

std::string why_refused(const Answer& answer) {
  const auto* refused = std::get_if<answer::Refused>(&answer.what);
  return refused ? refused->why : "";
}

// Each is told, named and heard no more; what it had goes to others.
void expect_barred(Generating& job, const Answer& answer, const std::string& word) {
  EXPECT_NE(why_refused(answer).find(word), std::string::npos) << word << ": " << why_refused(answer);
  EXPECT_NE(why_refused(answer).find("refused from now on"), std::string::npos) << why_refused(answer);
  const std::vector<Barred> barred = job.desk.take_barred();
  ASSERT_EQ(barred.size(), 1u) << word;
  EXPECT_EQ(barred[0].worker, job.worker);
  EXPECT_EQ(barred[0].host, "10.0.0.1");
  EXPECT_NE(barred[0].why.find(word), std::string::npos) << barred[0].why;
  EXPECT_EQ(job.desk.num_clients(), 0);
  EXPECT_TRUE(is_refused(job.call(call::LeaseGroups{1, PolicyVersion{0}})));
  EXPECT_TRUE(is_refused(job.call(call::Join{"again"}))) << "by its key";
  job.key = {7, 8};
  EXPECT_TRUE(is_refused(job.call(call::Join{"again"}))) << "by its connection";
  EXPECT_TRUE(job.desk.take_barred().empty()) << "once";
  job.from.line = "another line";
  job.join();
  EXPECT_EQ(job.lease().group, GroupId{0}) << "what it had under way waits for another";
}

TEST(Door, WhoSaysScoresThatCannotBeIsBarred) {
  using Change = std::function<void(data::Group&)>;
  const auto with_parts = [](int64_t count, const std::string& name) -> Change {
    return [=](data::Group& head) {
      head.samples[1].parts.clear();
      for (int64_t i = 0; i < count; ++i) head.samples[1].parts.emplace_back(name + (i > 0 ? std::to_string(i) : ""), 0);
    };
  };
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<Change, std::string>> changes = {
      {[&](data::Group& head) { head.samples[1].score = nan; }, "a score of nan"},
      {[&](data::Group& head) { head.samples[0].score = -infinite; }, "a score of -inf"},
      {[&](data::Group& head) { head.samples[0].score = -HUGE_VAL; }, "a score of -inf"},
      {[&](data::Group& head) { head.samples[0].parts[0].second = nan; }, "a part of a score of nan"},
      {[&](data::Group& head) { head.samples[0].finish = data::FinishReason::kAborted; }, "did not end"},
      {with_parts(65, "p"), "65 parts"},
      {with_parts(1'000'000, "p"), "1000000 parts"},
      {with_parts(1, std::string(129, 'n')), "129 characters"},
      {with_parts(1, ""), "0 characters"},
      {with_parts(1, "a\nb"), "can be shown"}};
  for (const auto& [change, word] : changes) {
    Generating job;
    const Lease lease = job.lease();
    data::Group head = scored_head(lease.group);
    change(head);
    expect_barred(job, job.call(call::Put{{lease.number}, {head}, usual_measures()}), word);
  }
}

// However many steps it takes to give them.
TEST(Door, TheNamesOfPartsHaveABound) {
  Generating job;
  job.desk.serve_workers(false, {});
  int64_t named = 0;
  for (int64_t step = 1;; ++step) {
    const Lease lease = job.lease();
    data::Group head = scored_head(lease.group);
    head.version = PolicyVersion{step - 1};
    for (data::Sample& sample : head.samples) {
      sample.parts.clear();
      for (int i = 0; i < 20; ++i) sample.parts.emplace_back("part " + std::to_string(named + i), 0);
    }
    named += 20;
    const Answer answer = job.call(call::Put{{lease.number}, {head}, {}});
    if (named > 256) {
      EXPECT_NE(why_refused(answer).find("of at most 256"), std::string::npos) << why_refused(answer);
      break;
    }
    ASSERT_FALSE(is_refused(answer)) << why_refused(answer);
    ASSERT_TRUE(job.desk.take(StepId{step}));
    (void)job.desk.commit(StepId{step}, PolicyVersion{step});
  }
}

TEST(Door, WhoReportsTokensThatCannotBeIsBarred) {
  using Change = std::function<void(data::Sample&)>;
  const float nan = std::nanf("");
  const std::vector<std::pair<Change, std::string>> changes = {
      {[&](data::Sample& s) { s.logprobs[1] = nan; }, "a log-probability of nan"},
      {[&](data::Sample& s) { s.logprobs[1] = 0.5; }, "a log-probability of 0.5"},
      {[&](data::Sample& s) { s.logprobs[1] = -1e30f; }, "a log-probability of -1e+30"},
      {[&](data::Sample& s) { s.kept_mass = {0, nan}; }, "a kept mass of nan"},
      {[&](data::Sample& s) { s.ids[0] = 100; }, "a token of 100"},
      {[&](data::Sample& s) { s.ids[0] = -1; }, "a token of -1"},
      {[&](data::Sample& s) { s.versions[0] = 1; }, "version of 1"},
      {[&](data::Sample& s) { s.logprobs.pop_back(); }, "1 logprobs of 2 tokens"},
      {[&](data::Sample& s) { s.ids.resize(7), s.logprobs.resize(7), s.versions.resize(7); }, "7 tokens, of at most 6"},
      {[&](data::Sample& s) { s.text = std::string(4000, 'x'); }, "a text of 4000 bytes"}};
  for (const auto& [change, word] : changes) {
    Generating job;
    const Lease lease = job.lease();
    data::Group begun = scored_head(lease.group);
    for (data::Sample& sample : begun.samples) sample.ids = {1, 2}, sample.logprobs = {-1, 0}, sample.versions = {0, 0};
    const auto beat = [&] {
      return call::Beat{PolicyVersion{0}, {{lease.group, lease.number, true, true}}, {}, {begun}, std::vector<Known>(begun.samples.size())};
    };
    EXPECT_FALSE(is_refused(job.call(beat())));
    change(begun.samples[1]);
    expect_barred(job, job.call(beat()), word);
  }
}

TEST(Door, ABodyOfWhichItIsFoundLaterBarsItsMaker) {
  Generating job;
  const Lease lease = job.lease();
  EXPECT_FALSE(is_refused(job.call(call::Put{{lease.number}, {scored_head(lease.group)}, usual_measures()})));
  job.desk.accuse(lease.group, "has a log-probability of nan");
  job.desk.lose(std::vector<GroupId>{lease.group}, "store");
  expect_barred(job, job.call(call::LeaseGroups{1, PolicyVersion{0}}), "group 0 has a log-probability of nan");
}

// The victim hears nothing of it, whatever the call; who makes it is named.
TEST(Door, WhoSpeaksAsAnotherIsBarredAndNotTheOther) {
  const std::vector<decltype(Call::verb)> verbs = {call::Leave{}, call::Leave{"it failed"}, call::LeaseGroups{1, {}}, call::Beat{},
                                                   call::Put{}};
  for (const auto& verb : verbs) {
    Generating job;
    const Lease lease = job.lease();
    const WorkerId victim = job.worker;
    const ClientKey key = std::exchange(job.key, {9, 9});
    const Origin from = std::exchange(job.from, {"its own line", "10.0.0.66"});
    job.join();
    const WorkerId hostile = std::exchange(job.worker, victim);
    EXPECT_NE(why_refused(job.call(verb)).find("spoke as"), std::string::npos);
    const std::vector<Barred> barred = job.desk.take_barred();
    ASSERT_EQ(barred.size(), 1u);
    EXPECT_EQ(barred[0].worker, hostile);
    EXPECT_EQ(barred[0].host, "10.0.0.66");
    EXPECT_TRUE(job.desk.take_failures().empty());
    job.key = key, job.from = from;
    const Answer put = job.call(call::Put{{lease.number}, {scored_head(lease.group)}, usual_measures()});
    ASSERT_TRUE(std::holds_alternative<answer::Kept>(put.what)) << why_refused(put);
    EXPECT_TRUE(std::get<answer::Kept>(put.what).kept.at(0)) << "its lease goes on";
  }
}

TEST(Door, WhoHasNoClientAndSpeaksAsOneIsNamedByItsHost) {
  Generating job;
  job.key = {3, 3}, job.from = {"a stranger's line", "10.0.0.66"};
  EXPECT_TRUE(is_refused(job.call(call::Leave{})));
  const std::vector<Barred> barred = job.desk.take_barred();
  ASSERT_EQ(barred.size(), 1u);
  EXPECT_EQ(barred[0].worker, std::nullopt);
  EXPECT_EQ(barred[0].host, "10.0.0.66");
  EXPECT_EQ(job.desk.num_clients(), 1);
}

TEST(Door, WhoIsNotWantedHearsWhy) {
  Generating job;
  job.desk.admit_by([](const call::Join& worker) { return worker.dtype == "bfloat16" ? "generates in bfloat16" : ""; });
  EXPECT_EQ(why_refused(job.call(call::Join{"other", "bfloat16", "cpu"})), "generates in bfloat16");
  EXPECT_FALSE(is_refused(job.call(call::Join{"other", "float32", "cpu"})));
  EXPECT_TRUE(job.desk.take_barred().empty()) << "it may come again as another";
}

// What a head has beyond its scores is not kept with it.
TEST(Door, AHeadIsNoPlaceForABody) {
  Generating job;
  const Lease lease = job.lease();
  data::Group head = scored_head(lease.group);
  for (data::Sample& sample : head.samples) sample.text = std::string(1 << 20, 'x'), sample.ids.resize(1 << 18);
  EXPECT_FALSE(is_refused(job.call(call::Put{{lease.number}, {head}, usual_measures()})));
  const data::Group& kept = job.controller.queue().group(lease.group);
  EXPECT_TRUE(kept.samples[0].text.empty() && kept.samples[0].ids.empty());
}

}  // namespace
}  // namespace tandem::queue
