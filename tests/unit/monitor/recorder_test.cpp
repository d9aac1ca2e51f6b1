// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/recorder.h"

#include <gtest/gtest.h>

#include <thread>

namespace tandem::monitor {
namespace {

struct Seen {
  std::vector<std::pair<int64_t, Metrics>> steps;
  std::vector<SpanRecord> spans;
};

class ListSink : public Sink {
 public:
  explicit ListSink(Seen& seen) : seen_(seen) {}
  void write_step(int64_t step, const Metrics& metrics) override { seen_.steps.emplace_back(step, metrics); }
  void write_spans(const std::vector<SpanRecord>& spans) override { seen_.spans.insert(seen_.spans.end(), spans.begin(), spans.end()); }
  int64_t flush() override { return static_cast<int64_t>(seen_.steps.size()); }
  std::string name() const override { return "list"; }

 private:
  Seen& seen_;
};

TEST(Recorder, KeepsTheLastValueTheSumAndThePeak) {
  Recorder recorder;
  for (const double value : {3.0, 7.0, 5.0}) {
    recorder.set("last", value);
    recorder.add("sum", value);
    recorder.peak("peak", value);
  }
  EXPECT_EQ(recorder.current("sum"), 15);
  EXPECT_EQ(recorder.current("absent"), 0);
  EXPECT_EQ(recorder.commit_step(1), (Metrics{{"last", 5}, {"peak", 7}, {"sum", 15}}));
}

TEST(Recorder, APeakBelowZeroIsNotRaisedToZero) {
  Recorder recorder;
  recorder.peak("x", -2);
  recorder.peak("x", -3);
  EXPECT_EQ(recorder.commit_step(1).at("x"), -2);
}

TEST(Recorder, StartsEachStepEmptyAndTellsEverySink) {
  Recorder recorder;
  Seen seen;
  recorder.add_sink(std::make_unique<ListSink>(seen));
  recorder.set("a", 1);
  recorder.commit_step(1);
  recorder.set("b", 2);
  recorder.commit_step(2);
  ASSERT_EQ(seen.steps.size(), 2u);
  EXPECT_EQ(seen.steps[1], (std::pair<int64_t, Metrics>(2, {{"b", 2}})));
  EXPECT_EQ(recorder.flush().at("list"), 2);
}

TEST(Recorder, SinksGetTheSpansOfTheirStep) {
  Recorder recorder;
  Seen seen;
  recorder.add_sink(std::make_unique<ListSink>(seen));
  recorder.span("rollout", "rank 0", 1, 3, 0.5);
  recorder.commit_step(1);
  recorder.commit_step(2);
  ASSERT_EQ(seen.spans.size(), 1u);
  EXPECT_EQ(seen.spans[0].track, "rank 0");
  EXPECT_EQ(seen.spans[0].end_s - seen.spans[0].begin_s, 2);
  EXPECT_EQ(seen.spans[0].waited_s, 0.5);
}

TEST(Recorder, CountsFromManyThreadsWhileStepsAreCommitted) {
  Recorder recorder;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) recorder.add("count", 1);
    });
  double sum = 0;
  for (int step = 0; step < 50; ++step) {
    const Metrics metrics = recorder.commit_step(step);
    if (metrics.count("count")) sum += metrics.at("count");
  }
  for (auto& thread : threads) thread.join();
  const Metrics rest = recorder.commit_step(50);
  EXPECT_EQ(sum + (rest.count("count") ? rest.at("count") : 0), 8000);
}

}  // namespace
}  // namespace tandem::monitor
