// SPDX-License-Identifier: Apache-2.0
// Parity mode: what rollout reports and what training computes for the same tokens and weights are the same bits, whatever
// the batches were.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "../tiny_model.h"
#include "tandem/algo/algorithm.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/device/process.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/rollout/group/group_assembly.h"
#include "tandem/policy/start_model.h"
#include "tandem/train/trainer.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// A model directory opened in parity mode.
struct Open {
  device::Arena arena{"device", 0, test::device_under_test()};
  std::unique_ptr<comm::Group> alone = comm::single();
  model::kernel::Kernels kernels;
  model::ModelOnRank model;
  const model::ModelParameters* runs = &model.parameters();  // on both sides

  Open(const std::string& dir, c10::ScalarType dtype, bool parity = true)
      : kernels(test::backend_under_test(arena.device()), dtype, parity, arena.device()),
        model(model::read_config(dir), {}, kernels, {arena, "weights"}) {
    model.load(dir);
  }
};

// How the engine is run; none of it may change a token or a bit.
struct Setting {
  const char* name;
  rollout::Options engine;
  bool small_pool = false;    // too few blocks for all that run, so that sequences are preempted
  int64_t admit_every = 0;    // 0: all at once; n: one group every n steps
  bool reversed = false;      // the last group first
};

rollout::Options engine_options(int64_t max_running, int64_t prefill_tokens, int64_t block_tokens) {
  rollout::Options o;
  o.max_running = max_running;
  o.prefill_tokens = prefill_tokens;
  o.kv_block_tokens = block_tokens;
  return o;
}

constexpr int64_t kGroups = 7, kSamples = 5, kLongestPrompt = 53, kLongestAnswer = 60;

std::vector<rollout::GroupRequest> requests(const model::ModelConfig& config, double temperature) {
  std::vector<rollout::GroupRequest> all;
  RandomStream random(5, 1);
  for (int64_t g = 0; g < kGroups; ++g) {
    rollout::GroupRequest r;
    r.group.id = data::GroupId{g};
    const int64_t length = g == 0 ? 1 : g == 1 ? 16 : g == 2 ? kLongestPrompt : 2 + random.below(kLongestPrompt - 2);
    for (int64_t i = 0; i < length; ++i) r.group.prompt.ids.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
    r.num_samples = g == 3 ? 1 : kSamples;
    r.first_sample = g * kSamples;
    r.sampling.temperature = temperature;
    r.seed = 11;
    for (int64_t i = 0; i < r.num_samples; ++i) r.max_new_tokens.push_back(1 + random.below(kLongestAnswer));
    all.push_back(std::move(r));
  }
  return all;
}

struct Rolled {
  std::map<int64_t, data::Group> groups;
  int64_t preemptions = 0;
};

Rolled roll(Open& open, const Setting& setting, double temperature, bool record_routes = false) {
  rollout::Options options = setting.engine;
  const model::ModelConfig& config = open.model.config();
  const int64_t context = setting.small_pool ? 1 : kLongestPrompt + kLongestAnswer;  // the pool is sized by what is declared
  rollout::Engine engine(options, {open.model.decoder(), open.arena, config.vocab_size, context});
  engine.switch_weights(*open.runs, data::PolicyVersion{0});
  rollout::GroupAssembly assembly(engine);
  auto waiting = requests(config, temperature);
  for (rollout::GroupRequest& request : waiting) request.record_routes = record_routes;
  if (setting.reversed) std::reverse(waiting.begin(), waiting.end());
  Rolled out;
  size_t next = 0;
  for (int64_t step = 0; next < waiting.size() || engine.running(); ++step) {
    while (next < waiting.size() && (setting.admit_every == 0 || step >= static_cast<int64_t>(next) * setting.admit_every))
      assembly.admit(waiting[next++]);
    engine.step();
    for (data::Group& g : assembly.finished()) out.groups[value(g.id)] = std::move(g);
  }
  EXPECT_EQ(engine.counts().free_blocks, engine.counts().blocks) << setting.name;
  EXPECT_EQ(out.groups.size(), static_cast<size_t>(kGroups));
  out.preemptions = engine.counts().preemptions;
  return out;
}

std::vector<train::Row> rows_of(const Rolled& rolled) {
  std::vector<train::Row> rows;
  for (const auto& [id, group] : rolled.groups)
    for (const data::Sample& s : group.samples) {
      train::Row row;
      row.prompt = group.prompt.ids;
      row.response = s.ids;
      row.behavior = s.logprobs;
      row.advantages.assign(row.response.size(), 1);
      row.fresh = true;
      rows.push_back(row);
    }
  return rows;
}

// Values of `a` and `b` that differ in any bit.
int64_t num_different(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return -1;
  int64_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], 4) != 0;
  return n;
}

double kl(const std::vector<train::Row>& rows, const std::vector<std::vector<float>>& scored) {
  double sum = 0, n = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t t = 0; t < scored[i].size(); ++t, ++n) {
      const double d = static_cast<double>(scored[i][t]) - rows[i].behavior[t];
      sum += std::expm1(d) - d;
    }
  return sum / n;
}

// Whatever the batches are; the rows of the rollout.
Rolled check_rollout_and_scores(Open& open, double temperature) {
  const std::vector<Setting> settings = {
      {"all at once", engine_options(64, 2048, 16)},
      {"one sequence at a time", engine_options(1, 2048, 16)},
      {"prompts in chunks of 7 and blocks of 32", engine_options(5, 7, 32)},
      {"preempted", engine_options(6, 64, 16), true},
      {"groups that join in mid-flight", engine_options(9, 19, 64), false, 9},
      {"the last group first, preempted", engine_options(8, 33, 16), true, 2, true},
  };
  const Rolled first = roll(open, settings[0], temperature);
  for (size_t i = 1; i < settings.size(); ++i) {
    const Rolled other = roll(open, settings[i], temperature);
    EXPECT_TRUE(!settings[i].small_pool || other.preemptions > 0) << settings[i].name;
    for (const auto& [id, group] : first.groups)
      for (size_t s = 0; s < group.samples.size(); ++s) {
        const data::Sample &a = group.samples[s], &b = other.groups.at(id).samples[s];
        EXPECT_EQ(a.ids, b.ids) << settings[i].name << ", group " << id << ", sample " << s;
        EXPECT_EQ(num_different(a.logprobs, b.logprobs), 0) << settings[i].name << ", group " << id << ", sample " << s;
      }
  }
  const std::vector<train::Row> rows = rows_of(first);
  for (int64_t budget : {1, 100, 8192}) {
    const auto scored = train::score(open.model.decoder(), *open.runs, rows, temperature, budget);
    int64_t different = 0, tokens = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      different += num_different(rows[i].behavior, scored[i]);
      tokens += static_cast<int64_t>(scored[i].size());
    }
    EXPECT_EQ(different, 0) << "of " << tokens << " tokens, passes of " << budget;
    EXPECT_GT(tokens, 500);
  }
  return first;
}

void check_chain(Open& open, double temperature) {
  const Rolled rolled = check_rollout_and_scores(open, temperature);
  const std::vector<train::Row> rows = rows_of(rolled);
  // The pass that trains reports the same bits, and one weight off by a thousandth is seen.
  train::Options options;
  options.micro_batch_tokens = 300;
  train::Trainer trainer(options, {open.model.table(), open.model.decoder(), open.model.values(), train::Ranks::of_one(*open.alone), open.arena});
  trainer.start();
  const train::StepReport report = trainer.policy_step(rows, {}, temperature, 0.0);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(num_different(rows[i].behavior, report.logprobs[i]), 0) << "row " << i;
  EXPECT_EQ(report.kl_rollout_train.value(), 0.0);
  EXPECT_GT(report.gap_tokens, 0);
  EXPECT_EQ(report.gap->mean, 0.0);
  EXPECT_EQ(report.gap->p99, 0.0);
  EXPECT_EQ(report.gap->max, 0.0);
}

// With replay, training sends every token to the experts that the rollout chose, also when the router has moved since.
void check_replay(Open& open) {
  const Rolled rolled = roll(open, {"preempted", engine_options(6, 64, 16), true}, 1.0, true);
  std::vector<train::Row> rows = rows_of(rolled);
  size_t i = 0;
  for (const auto& [id, group] : rolled.groups)
    for (const data::Sample& s : group.samples) rows[i++].routes = s.routes;
  const int64_t width = open.model.decoder().route_width();
  const auto recorded = [&](bool replay) {
    int64_t different = 0, all = 0;
    for (train::MicroBatch& batch : train::pack(rows, 300)) {
      const at::Tensor want = batch.tokens.replayed_routes_TX;
      if (!replay) batch.tokens.replayed_routes_TX = at::Tensor();
      batch.tokens.recorded_routes_TX = at::full({batch.tokens.ids_T.size(0), width}, -1, at::kShort);
      model::PackedContext context(open.kernels, batch.trees);
      at::NoGradGuard off;
      open.model.decoder().forward(open.model.parameters(), batch.tokens, context);
      const at::Tensor got = batch.tokens.recorded_routes_TX, asked = got >= 0;  // the last layer leaves some tokens out
      different += (at::ne(got, want) & asked).sum().item<int64_t>();
      all += asked.sum().item<int64_t>();
    }
    EXPECT_GT(all, 500);
    return different;
  };
  EXPECT_EQ(recorded(false), 0) << "the same weights choose the same experts";
  EXPECT_EQ(recorded(true), 0);
  for (const model::LayerParameters& layer : open.model.parameters().layers)
    if (layer.router.value.defined()) layer.router.value.mul_(-1);
  EXPECT_GT(recorded(false), 100);
  EXPECT_EQ(recorded(true), 0);
}

// The embedding of a token that occurs in every answer would do as well; a norm's weight is felt by each of them.
void check_perturbation(Open& open) {
  const Rolled rolled = roll(open, {"all at once", engine_options(64, 2048, 16)}, 1.0);
  const std::vector<train::Row> rows = rows_of(rolled);
  EXPECT_EQ(kl(rows, train::score(open.model.decoder(), open.model.parameters(), rows, 1.0, 8192)), 0.0);
  float* weight = open.model.parameters().final_norm.value.data_ptr<float>();
  weight[0] += 1e-3f;
  const double moved = kl(rows, train::score(open.model.decoder(), open.model.parameters(), rows, 1.0, 8192));
  weight[0] -= 1e-3f;
  EXPECT_GT(moved, 0.0);
  EXPECT_LT(moved, 1e-3);
}

// The quickstart's random model.
std::string quickstart() {
  static const std::string dir = [] {
    const std::string path = (fs::temp_directory_path() / ("tandem_parity_" + std::to_string(::getpid()))).string();
    config::ModelOptions options;
    options.init_deviation = 0.08;
    policy::write_random_model(path, options, 3);
    return path;
  }();
  return dir;
}

class Cleanup : public ::testing::Environment {
  void TearDown() override {
    std::error_code ignored;
    for (const char* suffix : {"", ".tokenizer"})
      fs::remove_all(fs::temp_directory_path() / ("tandem_parity_" + std::to_string(::getpid()) + suffix), ignored);
  }
};
const auto* const kCleanup = ::testing::AddGlobalTestEnvironment(new Cleanup);

std::string oracle(const std::string& name) { return std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/" + name; }

class Parity : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { device::set_compute_threads(GetParam()); }
};

TEST_P(Parity, RolloutAndTrainingAgreeBitForBitInFloat32) {
  Open open(quickstart(), at::kFloat);
  check_chain(open, 1.0);
}

TEST(ParityAtAnotherTemperature, RolloutAndTrainingAgreeBitForBit) {
  device::set_compute_threads(1);
  Open open(quickstart(), at::kFloat);
  check_chain(open, 0.7);
}

TEST_P(Parity, RolloutAndTrainingAgreeBitForBitInBfloat16) {
  Open open(quickstart(), at::kBFloat16);
  check_chain(open, 1.0);
}

TEST_P(Parity, RolloutAndTrainingAgreeBitForBitOnHuggingFaceModels) {
  for (const char* name : {"qwen2_tied", "qwen3_moe", "deepseek_v3"})
    for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << name << " " << dtype);
      Open open(oracle(name), dtype);
      check_chain(open, 1.0);
    }
}

// Under adapters both sides go through them.
TEST(ParityOfAdapters, RolloutAndTrainingAgreeBitForBit) {
  device::set_compute_threads(1);
  for (const char* name : {"qwen2_tied", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    Open open(oracle(name), at::kBFloat16);
    train::Trainer trainer({}, {open.model.table(), open.model.decoder(), open.model.values(), train::Ranks::of_one(*open.alone),
                                open.arena, model::LoraOptions{4, 8}, 5});
    trainer.start();
    const Rolled fresh = roll(open, {"all at once", engine_options(64, 2048, 16)}, 1.0);
    trainer.policy_step(rows_of(fresh), {}, 1.0, 0.01);
    open.runs = &trainer.parameters();
    const Rolled rolled = check_rollout_and_scores(open, 1.0);
    const auto start = train::score(open.model.decoder(), open.model.parameters(), rows_of(rolled), 1.0, 8192);
    EXPECT_GT(kl(rows_of(rolled), start), 0.0) << "the adapters changed nothing";
  }
}

TEST_P(Parity, TrainingGoesThroughTheExpertsOfTheRollout) {
  for (const char* name : {"qwen3_moe", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    Open open(oracle(name), at::kFloat);
    check_replay(open);
  }
}

TEST_P(Parity, OneWeightOffByAThousandthIsSeen) {
  Open open(quickstart(), at::kFloat);
  check_perturbation(open);
}

INSTANTIATE_TEST_SUITE_P(Threads, Parity, ::testing::Values(1, 2));

}  // namespace
}  // namespace tandem
