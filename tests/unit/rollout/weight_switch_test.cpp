// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/engine.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "../../tiny_model.h"
#include "../../wired_group.h"
#include "tandem/base/error.h"
#include "tandem/reshard/execute.h"
#include "tandem/reshard/plan_make.h"

namespace tandem::rollout {
namespace {

constexpr int kRanks = 4, kCulprit = 2;

/// One rank: an engine with a whole model of its own, whose new weights come in quarters from all ranks.
struct Rank {
  explicit Rank(comm::Group& ranks)
      : world(ranks), engine(options(), {model.decoder, model.arena, model.decoder.config().vocab_size, 64}),
        fresh(model.values.mul(2)) {
    const int64_t size = model.values.numel();
    reshard::Table table{kRanks, {{}, {}}, {{0, 1}}, {0}};
    for (int r = 0; r < kRanks; ++r) {
      table.holdings[0].push_back({r, Box{{r * size / kRanks}, {(r + 1) * size / kRanks}}});
      table.holdings[1].push_back({r, Box{{0}, {size}}});
    }
    mine = table.holdings[0][static_cast<size_t>(ranks.rank())].box;
    plan = reshard::part_of(reshard::make_plan(table, {.element_bytes = 4, .bucket_bytes = size}), ranks.rank());
  }
  static Options options() {
    Options o;
    o.max_running = 4, o.kv_cache_mib = 4;
    return o;
  }
  void move(comm::Group& by) {
    const reshard::Held from{0, mine, fresh.narrow(0, mine.begin[0], mine.extent(0))};
    const reshard::Held to{0, Box{{0}, {model.values.numel()}}, model.values};
    reshard::execute(plan, by, {&from, 1}, {&to, 1}, {at::kFloat});
  }
  void switch_to(int64_t version, const std::function<void()>& how) {
    const SendWeights send = [&] {
      how();
      return &model.parameters;
    };
    switch_weights(&engine, world, send, data::PolicyVersion{version});
  }
  void ask(int64_t group) {
    Request request;
    request.prompt = {3, 5, 7};
    request.sample = data::SampleId{group};
    request.sampling.max_new_tokens = 2;
    engine.submit(std::move(request));
  }

  comm::Group& world;
  test::TinyModel model{test::tiny_config(), at::kFloat, true};
  Engine engine;
  at::Tensor fresh;
  Box mine;
  reshard::RankPlan plan;
};

TEST(WeightSwitch, AfterAFailureInItsMiddleNoEngineHasAVersion) {
  std::atomic<int> num_without{0}, num_mixed{0}, num_refused{0};
  EXPECT_THROW(comm::run_local(kRanks, 30, [&](comm::Group& world) {
    Rank rank(world);
    ASSERT_GT(rank.plan.buckets.size(), 2u);
    rank.switch_to(0, [] {});
    rank.ask(1);
    rank.engine.step();  // a sequence runs when the switch comes
    const at::Tensor old = rank.model.values.clone();
    int num_calls = 0;
    test::WiredGroup failing(world, {[&] {
                                       if (++num_calls == 2) throw std::runtime_error("injected");  // in its second bucket
                                     },
                                     nullptr});
    try {
      rank.switch_to(1, [&] { rank.move(world.rank() == kCulprit ? failing : world); });
    } catch (const std::exception&) {
      num_without += !rank.engine.version();
      num_mixed += !at::equal(rank.model.values, old) && !at::equal(rank.model.values, rank.fresh);
      try {
        rank.engine.step();
      } catch (const InternalError&) {
        ++num_refused;
      }
      throw;
    }
  }), std::runtime_error);
  EXPECT_EQ(num_without, kRanks);
  EXPECT_EQ(num_mixed, kRanks) << "the failure was not in the middle of the switch";
  EXPECT_EQ(num_refused, kRanks);
}

TEST(WeightSwitch, NoEngineHasTheNewVersionBeforeAllRanksHaveTheirBytes) {
  std::atomic<int> num_ended{0};
  comm::run_local(kRanks, 30, [&](comm::Group& world) {
    Rank rank(world);
    rank.switch_to(0, [] {});
    rank.switch_to(1, [&] {
      EXPECT_FALSE(rank.engine.version());
      rank.move(world);
      if (world.rank() == kCulprit) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ++num_ended;
    });
    EXPECT_EQ(num_ended, kRanks);
    EXPECT_EQ(rank.engine.version(), data::PolicyVersion{1});
    EXPECT_TRUE(at::equal(rank.model.values, rank.fresh));
    rank.ask(1);
    while (rank.engine.running()) rank.engine.step();
    EXPECT_EQ(rank.engine.completed().at(0).sample.versions.front(), 1);
  });
}

}  // namespace
}  // namespace tandem::rollout
