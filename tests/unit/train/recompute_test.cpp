// SPDX-License-Identifier: Apache-2.0
// Recompute gives the same bits with the memory that was predicted.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "one_rank.h"
#include "tandem/base/check.h"
#include "tandem/planner/activations.h"

namespace tandem::train {
namespace {

model::ModelConfig recompute_config_of(const std::string& family) {
  model::ModelConfig config = family == "qwen2" || family == "qwen3" ? test::config_of(family, 2) : test::experts_config(family);
  config.num_layers = 64;  // what one layer takes for a moment is little beside what all keep
  config.tied_embeddings = false;
  config.max_positions = 256;
  return config;
}

struct Outcome {
  std::vector<double> norms;
  at::Tensor values;
  int64_t activations, arena_peak;
};

Outcome train(const std::string& family, c10::ScalarType dtype, const std::string& recompute) {
  test::TinyModel model(recompute_config_of(family), dtype, false, 0.05);
  model.kernels = model::kernel::Kernels(model::kernel::cpu::backend(), dtype,
                                         model::kernel::GemmChoice{});  // not as measured, which may differ from model to model
  Options options;
  options.recompute = recompute;
  Trainer trainer(options, {model.table, model.decoder, model.values, test::ranks_alone(model), model.arena});
  trainer.start();
  std::vector<std::vector<int32_t>> tokens;
  RandomStream random(3, 1);
  for (int i = 0; i < 2; ++i)
    for (auto& ids = tokens.emplace_back(); ids.size() < 200;) ids.push_back(static_cast<int32_t>(random.below(64)));
  std::vector<Row> rows(tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i].prompt = std::span(tokens[i]).first(60),
      rows[i].response = std::span(tokens[i]).subspan(60);
  Outcome out{};
  for (int step = 0; step < 2; ++step) {
    const StepReport report = trainer.supervised_step(rows, 1e-3);
    out.norms.push_back(report.grad_norm);
    out.activations = report.activation_peak_bytes;
  }
  out.values = model.values.view(at::kByte).clone();
  out.arena_peak = model.arena.peak_bytes();
  EXPECT_EQ(model.arena.bytes("activations"), 0);
  return out;
}

// By how many bytes the peak of a step of one micro-batch falls below that without recompute: what is not kept, but for what one layer
// takes when it runs again.
int64_t saved_activations(const planner::TrainingPlan& plan, const planner::PassShape& pass, model::Recompute recompute) {
  const auto kept = [&](model::Recompute by, int64_t num_layers) {
    planner::TrainingPlan part = plan;
    part.config.num_layers = num_layers;
    return planner::kept_activations(part, pass, by);
  };
  const int64_t layers = plan.config.num_layers, whole = kept(model::Recompute::kNone, layers), saved = whole - kept(recompute, layers);
  return recompute == model::Recompute::kFull ? saved - (whole - kept(model::Recompute::kNone, layers - 1)) : saved;
}

class RecomputeOf : public testing::TestWithParam<std::tuple<const char*, c10::ScalarType>> {};

TEST_P(RecomputeOf, GivesTheSameBitsInTheMemoryThatWasPredicted) {
  const auto [family, dtype] = GetParam();
  const Outcome whole = train(family, dtype, "none");
  const planner::TrainingPlan plan{recompute_config_of(family), {}, static_cast<int64_t>(c10::elementSize(dtype))};
  const planner::PassShape pass{2 * 199, 2 * 140};
  for (const auto& [name, recompute] : {std::pair("selective", model::Recompute::kSelective), std::pair("full", model::Recompute::kFull)}) {
    const Outcome less = train(family, dtype, name);
    EXPECT_EQ(less.norms, whole.norms) << name;
    EXPECT_TRUE(at::equal(less.values, whole.values)) << name;
    const auto predicted = static_cast<double>(saved_activations(plan, pass, recompute));
    const auto fall = static_cast<double>(whole.arena_peak - less.arena_peak);
    std::printf("%s %s: peak of activations %lld, without %lld; fell by %.0f, predicted %.0f\n", family, name,
                static_cast<long long>(less.activations),
                static_cast<long long>(whole.activations), fall, predicted);
    EXPECT_GT(predicted, 0);
    EXPECT_NEAR(fall / predicted, 1, 0.02) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RecomputeOf,
                         testing::Combine(testing::Values("qwen2", "qwen3", "qwen3_moe", "deepseek_v3"), testing::Values(at::kFloat,
                                                                                                                         at::kBFloat16)),
                         [](const auto& info) { return join_text(std::get<0>(info.param), "_", c10::toString(std::get<1>(info.param))); });

}  // namespace
}  // namespace tandem::train
