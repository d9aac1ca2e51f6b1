// SPDX-License-Identifier: Apache-2.0
// Graphs of decode steps on a fake device, which counts captures and the memory that they take.
#include "tandem/rollout/decode_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "../../tiny_model.h"
#include "tests/fake_device/queue.h"
#include "tandem/planner/activations.h"
#include "tandem/rollout/engine.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kMostRunning = 256, kLongestContext = 64, kTokensOfBlock = 16, kMostBlocksSeen = kLongestContext / kTokensOfBlock;

TEST(GraphShapes, AreFewCoverEveryStepAndBeginWithTheLargest) {
  for (const int64_t tokens : {1, 2, 7, 8, 9, 100, 128, 256, 1000})
    for (const int64_t blocks : {1, 2, 3, 9, 16, 128}) {
      const std::vector<GraphShape> shapes = graph_shapes(tokens, blocks);
      EXPECT_LE(shapes.size(), 21U);
      EXPECT_EQ(std::set(shapes.begin(), shapes.end()).size(), shapes.size()) << "a shape twice";
      EXPECT_TRUE(std::ranges::is_sorted(shapes, std::ranges::greater{}));
      EXPECT_EQ(shapes.front(), (GraphShape{tokens, blocks})) << "no room for more than asked for";
      EXPECT_EQ(shapes.back(), (GraphShape{1, 1}));
    }
  EXPECT_EQ(graph_shapes(100, 1).size(), 6U) << "100, 64, 32, 16, 8, 1";
}

model::ModelConfig graph_config(int64_t vocab_size) {
  model::ModelConfig config = test::tiny_config();
  config.vocab_size = vocab_size;
  config.eos_ids = {};
  return config;
}

Options graph_options(bool graphs) {
  Options o;
  o.max_running = kMostRunning;
  o.kv_cache_mib = 64;
  o.kv_block_tokens = kTokensOfBlock;
  o.graphs = graphs;
  return o;
}

// An engine that is closed for training and opened again.
struct Colocated {
  test::TinyModel model;
  Engine engine;

  explicit Colocated(bool graphs, int64_t vocab_size = 128)
      : model(graph_config(vocab_size), at::kFloat, false),
        engine(graph_options(graphs), {model.decoder, model.arena, model.decoder.config().vocab_size, kLongestContext}) {}

  // What the sequences of one rollout answer, some of which end early.
  std::vector<int32_t> rollout(int64_t version) {
    engine.switch_weights(model.parameters, data::PolicyVersion{version});
    const int64_t sequences = 1 + version * 7 % 13;
    for (int64_t i = 0; i < sequences; ++i) {
      Request request;
      for (int64_t t = 0; t < 3 + i; ++t) request.prompt.push_back(static_cast<int32_t>((version + 11 * t + 5 * i) % 90 + 2));
      request.sample = data::SampleId{i};
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = 4 + i;
      engine.submit(std::move(request));
    }
    while (engine.running()) engine.step();
    std::vector<Completion> done = engine.completed();
    std::ranges::sort(done, {}, [](const Completion& c) { return c.sample.id; });
    std::vector<int32_t> ids;
    for (const Completion& each : done) ids.insert(ids.end(), each.sample.ids.begin(), each.sample.ids.end());
    engine.release_memory();
    return ids;
  }
};

class DecodeGraphsOnAFakeDevice : public testing::Test {
 protected:
  void SetUp() override {
    const char* name = std::getenv("TANDEM_TEST_DEVICE");
    if (!name || std::string(name) != "fake") GTEST_SKIP() << "asks the fake device what it captured";
  }
  device::fake::Queue& queue() { return device::fake::queue_of(0); }
};

TEST_F(DecodeGraphsOnAFakeDevice, AreCapturedOnceInFortySwitchesAndAnswerAsStepsWithout) {
  Colocated with(true), without(false);
  ASSERT_TRUE(DecodeGraphs::serves(with.model.decoder));
  const int64_t before = queue().num_captures();
  for (int64_t version = 0; version < 40; ++version) {
    EXPECT_EQ(with.rollout(version), without.rollout(version)) << "version " << version;
    EXPECT_EQ(queue().num_captures() - before, std::ssize(graph_shapes(kMostRunning, kMostBlocksSeen))) << "version " << version;
  }
  EXPECT_GT(with.engine.counts().ran_ahead, 0);
}

// Where one copy of the weights is filled while another one is read, each has its graphs.
TEST_F(DecodeGraphsOnAFakeDevice, AreCapturedOnceForEachOfTwoCopiesOfTheWeights) {
  Colocated c(true);
  const at::Tensor copy = c.model.arena.allocate("weights", {c.model.table.num_elements}, at::kFloat);
  copy.copy_(c.model.values);
  const model::ModelParameters other = model::make_parameters(c.model.table, copy, at::Tensor());
  const int64_t before = queue().num_captures();
  for (int64_t version = 0; version < 6; ++version)
    c.engine.switch_weights(version % 2 == 0 ? c.model.parameters : other, data::PolicyVersion{version});
  EXPECT_EQ(queue().num_captures() - before, 2 * std::ssize(graph_shapes(kMostRunning, kMostBlocksSeen)));
}

// The cache leaves them the room that they take, and has as many blocks when it comes back.
TEST_F(DecodeGraphsOnAFakeDevice, AreCapturedOnceWhereABudgetBoundsTheCache) {
  constexpr int64_t kBudget = 4 << 20;
  test::TinyModel model(graph_config(128), at::kFloat, false);
  device::Arena arena("device", kBudget, model.arena.device());
  Engine engine(graph_options(true), {model.decoder, arena, model.decoder.config().vocab_size, kLongestContext});
  const int64_t before = queue().num_captures();
  for (int64_t version = 0; version < 4; ++version) {
    engine.switch_weights(model.parameters, data::PolicyVersion{version});
    EXPECT_EQ(queue().num_captures() - before, std::ssize(graph_shapes(kMostRunning, kMostBlocksSeen))) << "version " << version;
    EXPECT_GT(arena.bytes("kv_cache"), kBudget / 4) << "it has what is left";
    EXPECT_LE(arena.bytes(), kBudget + kBudget / 50) << "version " << version;
    engine.release_memory();
  }
}

// What the device has given away, not what somebody reckons.
TEST_F(DecodeGraphsOnAFakeDevice, HoldOneTensorOfLogitsAndWhatThePlannerSays) {
  Colocated c(true, 1 << 15);  // wide beside the model, as those of models are
  const auto held = [&] {
    device::synchronize(c.model.arena.device());
    return queue().taken_bytes() - c.model.arena.bytes("kv_cache");
  };
  const int64_t before = held();
  (void)c.rollout(0);
  c.engine.switch_weights(c.model.parameters, data::PolicyVersion{1});
  const int64_t open = held() - before, one = kMostRunning * c.model.decoder.config().vocab_size * 4;
  const planner::TrainingPlan plan{c.model.decoder.config(), {}, 4, {}, 0, false};
  const planner::GraphMemory said = planner::graph_memory(plan, kMostRunning, kMostBlocksSeen);
  std::printf("graphs hold %lld bytes, the planner says %lld + %lld, one tensor of logits has %lld\n", static_cast<long long>(open),
              static_cast<long long>(said.logits), static_cast<long long>(said.shared), static_cast<long long>(one));
  EXPECT_EQ(c.model.arena.bytes("logits"), one);
  EXPECT_EQ(said.logits, one);
  EXPECT_NEAR(static_cast<double>(open), static_cast<double>(said.logits + said.shared), 0.05 * static_cast<double>(open));
  EXPECT_LE(open - one, one / 20) << "what graphs hold beside the logits";
  const int64_t counted = c.model.arena.bytes("logits") + c.model.arena.bytes("graphs");
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(open), 0.05 * static_cast<double>(open)) << "by the arena";
  c.engine.release_memory();
  EXPECT_EQ(c.model.arena.bytes("logits"), 0) << "while the model trains";
  EXPECT_LE(held() - before, one / 20);
}

}  // namespace
}  // namespace tandem::rollout
