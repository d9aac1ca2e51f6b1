// SPDX-License-Identifier: Apache-2.0
// What passes take at once is at most what the planner says, and not much less.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "../train/one_rank.h"
#include "tandem/base/check.h"
#include "tandem/config/algorithm.h"
#include "tandem/device/allocation_meter.h"
#include "tandem/device/process.h"
#include "tandem/model/kernel/backend.h"
#include "tandem/planner/activations.h"
#include "tandem/rollout/engine.h"

namespace tandem::fit {
namespace {

constexpr int64_t kRows = 6, kPrompt = 8, kResponse = 60;
constexpr double kLeastShare = 0.6;  // of what is said: an upper bound that is no use if it is far off

// Shaped as models are: an MLP of 2.7 times the hidden size, a vocabulary that is wide beside both.
model::ModelConfig shaped(const std::string& family) {
  model::ModelConfig config = test::config_of(family, 2);
  config.hidden_size = 128;
  config.intermediate_size = 352;
  config.head_dim = 32;
  config.num_layers = 6;
  config.vocab_size = 1500;
  config.max_positions = 256;
  return config;
}

// Those for processors: those of libtorch alone take more than twice as much.
model::kernel::Kernels own_kernels(c10::ScalarType dtype) {
  using model::kernel::Library;
  const Library library = dtype == at::kFloat ? Library::kBlas : Library::kOneDnn;
  return {model::kernel::cpu::backend(), dtype, model::kernel::GemmChoice{library, library, library}};
}

struct Model : test::TinyModel {
  Model(const model::ModelConfig& config, c10::ScalarType dtype) : TinyModel(config, dtype, false, 0.05) { kernels = own_kernels(dtype); }
};

struct Rows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<float> ones = std::vector<float>(kResponse, 1.0F), logprobs = std::vector<float>(kResponse, -7.0F);
  std::vector<train::Row> rows;

  explicit Rows(const model::ModelConfig& config) : tokens(kRows), rows(kRows) {
    RandomStream random(3, 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      while (std::ssize(tokens[i]) < kPrompt + kResponse)
        tokens[i].push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(config.vocab_size))));
      rows[i].prompt = std::span(tokens[i]).first(kPrompt);
      rows[i].response = std::span(tokens[i]).subspan(kPrompt);
      rows[i].behavior = logprobs;
      rows[i].fresh = true;
      rows[i].advantages.assign(kResponse, i % 2 == 0 ? 1.0F : -1.0F);
    }
  }
};

void expect_bound(const std::string& what, int64_t said, int64_t measured) {
  std::printf("%s: said %lld, measured %lld (%.2f)\n", what.c_str(), static_cast<long long>(said), static_cast<long long>(measured),
              static_cast<double>(measured) / static_cast<double>(said));
  EXPECT_LE(measured, said) << what;
  EXPECT_GE(static_cast<double>(measured), kLeastShare * static_cast<double>(said)) << what;
}

class PassBytesOf : public testing::TestWithParam<std::tuple<const char*, c10::ScalarType>> {
 protected:
  const model::ModelConfig config_ = shaped(std::get<0>(GetParam()));
  const c10::ScalarType dtype_ = std::get<1>(GetParam());
  const planner::TrainingPlan plan_{config_, {}, static_cast<int64_t>(c10::elementSize(dtype_))};
  const planner::PassShape pass_{kRows * (kPrompt + kResponse - 1), kRows * kResponse};
};

TEST_P(PassBytesOf, TrainingTakesNoMoreThanThePlannerSays) {
  const Rows rows(config_);
  for (const auto& [word, recompute] : {std::pair("none", model::Recompute::kNone), std::pair("selective", model::Recompute::kSelective),
                                        std::pair("full", model::Recompute::kFull)})
    for (const int64_t rank : {0, 4}) {
      Model model(config_, dtype_);
      train::Options options;
      options.recompute = word;
      const model::LoraOptions lora{rank, 8};
      train::Trainer trainer(options, {model.table, model.decoder, model.values, test::ranks_alone(model), model.arena, lora});
      trainer.start();
      const train::StepReport report = trainer.policy_step(rows.rows, config::algorithm_of({}), 1.0, 1e-6);
      planner::TrainingPlan plan = plan_;
      plan.lora.rank = rank;
      expect_bound(join_text(word, rank > 0 ? ", adapters" : ""), planner::training_pass_bytes(plan, pass_, recompute),
                   report.activation_peak_bytes);
    }
}

TEST_P(PassBytesOf, TrainingOnTwoRanksOfTensorParallelismTakesNoMoreThanThePlannerSays) {
  const Rows rows(config_);
  const model::Layout layout = model::parse_layout("tp2", "layout");
  for (const auto& [word, recompute] : {std::pair("none", model::Recompute::kNone), std::pair("full", model::Recompute::kFull)}) {
    planner::TrainingPlan plan = plan_;
    plan.layout = layout;
    const int64_t said = planner::training_pass_bytes(plan, pass_, recompute);
    comm::run_local(layout.world(), 60, [&](comm::Group& world) {
      device::set_compute_threads(1);
      comm::Mesh mesh(world, model::mesh_sizes(layout));
      const model::kernel::Kernels kernels = own_kernels(dtype_);
      const model::ParameterTable table = model::parameter_table(config_, layout, world.rank());
      const model::Decoder decoder(config_, kernels, model::place_in(layout, mesh));
      device::Arena device("device");
      at::Tensor values = device.allocate("weights", {table.num_elements}, dtype_);
      model::initialize_parameters(table, values, 1, 0.05);
      train::Options options;
      options.recompute = word;
      train::Trainer trainer(options, {table, decoder, values, train::Ranks::in(mesh, config_), device});
      trainer.start();
      const train::StepReport report = trainer.policy_step(rows.rows, config::algorithm_of({}), 1.0, 1e-6);
      expect_bound(join_text(word, ", rank ", world.rank()), said, report.activation_peak_bytes);
    });
  }
}

TEST_P(PassBytesOf, ScoringTakesNoMoreThanThePlannerSays) {
  const Rows rows(config_);
  Model model(config_, dtype_);
  device::AllocationMeter meter(model.arena, train::kActivations);
  (void)train::score(model.decoder, model.parameters, rows.rows, 1.0, 1 << 20);
  expect_bound("scoring", planner::scoring_pass_bytes(plan_, pass_), meter.peak_bytes());
}

TEST_P(PassBytesOf, GenerationTakesNoMoreThanThePlannerSays) {
  constexpr int64_t kRunning = 64, kPrefill = 512;
  Model model(config_, dtype_);
  rollout::Options options;
  options.max_running = kRunning;
  options.prefill_tokens = kPrefill;
  options.packed_weights = false;
  rollout::Engine engine(options, {model.decoder, model.arena, config_.vocab_size, config_.max_positions});
  engine.switch_weights(model.parameters, data::PolicyVersion{0});
  for (int64_t i = 0; i < kRunning; ++i) {
    rollout::Request request;
    for (int64_t t = 0; t < 32; ++t) request.prompt.push_back(static_cast<int32_t>((i * 37 + t * 11) % config_.vocab_size));
    request.sample = data::SampleId{i};
    request.sampling.max_new_tokens = 20;
    request.sampling.ignore_eos = true;
    engine.submit(std::move(request));
  }
  device::AllocationMeter meter(model.arena, train::kActivations);
  while (engine.must_step()) engine.step();
  expect_bound("generation", planner::generation_step_bytes(plan_, {kRunning + kPrefill, kRunning}, 1), meter.peak_bytes());
}

// By libtorch's operators, as on CUDA, whose sort takes memory beside that a fake device does not take.
TEST(PassBytes, AFilteredDrawTakesNoMoreThanThePlannerSays) {
  const at::Device device = device::device_named("fake", "--device");
  device::backend_of(device).use(device);
  device::Arena arena("device", 0, device);
  for (const int64_t draws : {8, 300}) {
    planner::TrainingPlan plan{shaped("qwen2"), {}, 2};
    plan.on_cuda = true;
    const int64_t V = plan.config.vocab_size;
    const at::Tensor logits = at::randn({1, draws, V}).to(device);
    const model::kernel::DrawArgs args{at::arange(draws),
                                       at::ones({draws}, at::kDouble),
                                       at::zeros({draws}, at::kLong),
                                       at::full({draws}, 0.9, at::kDouble),
                                       at::full({draws}, 0.5, at::kDouble),
                                       V,
                                       V};
    device::AllocationMeter meter(arena, train::kActivations);
    (void)model::kernel::aten::backend().logit.draw(logits, args);
    device::synchronize(device);
    expect_bound(join_text(draws, " draws"), planner::filtered_draw_bytes(plan, draws), meter.peak_bytes());
    plan.on_cuda = false;
    EXPECT_EQ(planner::filtered_draw_bytes(plan, draws), 0) << "our own kernels take a row at a time";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PassBytesOf,
                         testing::Combine(testing::Values("qwen2", "qwen3"), testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) { return join_text(std::get<0>(info.param), "_", c10::toString(std::get<1>(info.param))); });

}  // namespace
}  // namespace tandem::fit
