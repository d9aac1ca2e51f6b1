// SPDX-License-Identifier: Apache-2.0
// Adapters against the gradient of the whole matrix, of which theirs are projections.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "one_rank.h"
#include "tandem/base/error.h"
#include "tandem/model/op/product.h"

namespace tandem::train {
namespace {

using test::TinyModel;

struct LoraRows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Row> rows;

  LoraRows() {
    RandomStream random(3, 1);
    for (int64_t i = 0; i < 6; ++i) {
      auto& ids = tokens.emplace_back();
      for (int64_t t = 6 + random.below(20); t > 0; --t) ids.push_back(static_cast<int32_t>(random.below(64)));
    }
    for (const auto& ids : tokens) rows.push_back({.prompt = std::span(ids).first(3), .response = std::span(ids).subspan(3)});
  }
};

struct LoraCase {
  TinyModel model;
  Trainer trainer;

  LoraCase(const model::ModelConfig& config, c10::ScalarType dtype, bool parity, const model::LoraOptions& lora)
      : model(config, dtype, parity, 0.3),
        trainer({}, {model.table, model.decoder, model.values, test::ranks_alone(model),
                     model.arena, lora, 5}) {
    trainer.start();
  }

  at::Tensor adapter(const std::string& name, const at::Tensor& flat) const {
    const model::ParameterTable& table = trainer.lora()->table();
    for (const model::ParameterEntry& e : table.entries)
      if (e.parameter.name == name) return table.view(flat, e);
    throw InternalError("no " + name);
  }
};

std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

std::vector<model::ModelConfig> configs() {
  return {test::tiny_config(), test::config_of("qwen3", 2), test::experts_config("qwen3_moe"), test::experts_config("deepseek_v3")};
}

TEST(Lora, GradientsAreThoseOfTheWholeMatrixProjected) {
  const LoraRows batch;
  const model::LoraOptions lora{3, 6};
  for (const model::ModelConfig& config : configs())
    for (bool parity : {false, true}) {
      SCOPED_TRACE(config.family + (parity ? ", parity" : ""));
      LoraCase adapted(config, at::kFloat, parity, lora);
      adapted.trainer.supervised_step(batch.rows, 0.1);  // B is no longer zero
      const at::Tensor values = adapted.trainer.lora()->values().clone();
      LoraCase whole(config, at::kFloat, parity, {});
      whole.model.values.copy_(adapted.model.values);
      for (const model::ParameterEntry& e : whole.model.table.entries) {
        if (!model::is_adapted(e.parameter, lora)) continue;
        const auto [name_a, name_b] = model::adapter_names(e.parameter);
        at::Tensor w = whole.model.table.view(whole.model.values, e);
        w.copy_(model::merged_matrix(w, adapted.adapter(name_a, values), adapted.adapter(name_b, values), lora.scale()));
      }
      whole.trainer.start();
      const StepReport got = adapted.trainer.supervised_step(batch.rows, 0), want = whole.trainer.supervised_step(batch.rows, 0);
      for (size_t i = 0; i < batch.rows.size(); ++i)
        for (size_t t = 0; t < want.logprobs[i].size(); ++t) EXPECT_NEAR(got.logprobs[i][t], want.logprobs[i][t], 2e-5);
      int num_matrices = 0;
      for (const model::ParameterEntry& e : whole.model.table.entries) {
        const std::string name = "base_model.model." + module_of(e.parameter.name) + ".lora_";
        bool chosen = false;
        if (e.parameter.shape.size() == 1) continue;
        for (const model::ParameterEntry& one : adapted.trainer.lora()->table().entries) chosen |= one.parameter.name == name + "A.weight";
        if (!chosen) continue;
        ++num_matrices;
        const at::Tensor dw = whole.model.table.view(whole.trainer.grads(), e);
        const at::Tensor a = adapted.adapter(name + "A.weight", values), b = adapted.adapter(name + "B.weight", values);
        const auto close = [&](const char* part, const at::Tensor& expected) {
          const at::Tensor got_grad = adapted.adapter(name + part + ".weight", adapted.trainer.grads());
          EXPECT_LT((got_grad - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>()) << name << part;
        };
        close("A", 2 * b.t().matmul(dw));
        close("B", 2 * dw.matmul(a.t()));
      }
      const int64_t of_layer = config.mla.kv_rank > 0 ? 5 : 4;
      int64_t expected = of_layer * config.num_layers;  // of attention
      for (int64_t i = 0; i < config.num_layers; ++i)
        if (!config.is_sparse(i) || config.moe.num_shared_experts > 0) expected += 3;
      EXPECT_EQ(num_matrices, expected);
    }
}

TEST(Lora, FreshAdaptersChangeNoBitAndTheWeightsUnderThemStay) {
  const LoraRows batch;
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    LoraCase c(test::tiny_config(), dtype, true, {4, 16, {"q_proj", "down_proj"}});
    const at::Tensor start = c.model.values.clone();
    const auto scores = [&](const model::ModelParameters& parameters) {
      return score(c.model.decoder, parameters, batch.rows, 1.0, 8192);
    };
    const auto before = scores(c.model.parameters);
    EXPECT_EQ(c.trainer.supervised_step(batch.rows, 0.05).logprobs, before) << "B is zero";
    EXPECT_NE(scores(c.trainer.parameters()), before);
    EXPECT_EQ(scores(c.trainer.lora()->adapted()), scores(c.trainer.parameters())) << "rollout runs what training runs";
    EXPECT_TRUE(at::equal(c.model.values, start));
    const model::ModelParameters adapted = c.trainer.lora()->adapted();
    for (const model::LayerParameters& layer : adapted.layers) {
      EXPECT_TRUE(layer.qkv.a_RK.defined() && layer.down.a_RK.defined());
      EXPECT_FALSE(layer.output.a_RK.defined() || layer.gate_up.a_RK.defined());
      const at::Tensor b = layer.qkv.b_NR.to(at::kFloat);
      EXPECT_GT(b.narrow(0, 0, 8).abs().max().item<double>(), 0);
      const int64_t q_rows = c.model.table.config.num_heads * c.model.table.config.head_dim;
      EXPECT_EQ(b.narrow(0, q_rows, 8).abs().max().item<double>(), 0) << "k and v have none";
    }
  }
}

// sum(a b) / sum(b b): how much of the wanted move is in the one seen.
double slope(const at::Tensor& seen, const at::Tensor& want) {
  return (seen.to(at::kDouble) * want).sum().item<double>() / want.pow(2).sum().item<double>();
}

// What rounding to bfloat16, 8 bits, may do to the values: half a unit of the last place.
at::Tensor half_units(const at::Tensor& values) { return at::exp2(values.abs().log2().floor() - 8); }

// The error of a rounded value is spread over a unit of its last place evenly: its deviation is that unit / sqrt(12).
double deviation_of_slope(double half_unit, double move, int64_t count) {
  return std::sqrt(2.0) * 2 * half_unit / std::sqrt(12.0) / (move * std::sqrt(static_cast<double>(count)));
}

// By one product, and in parts as a device runs few rows.
TEST(Lora, AChangeOfATenThousandthPassesABfloat16Product) {
  for (const bool in_parts : {false, true}) {
    const int64_t T = 1030;
    const int64_t N = 1024, K = 512, rank = 4;
    RandomStream random(5, 5);
    const auto normal = [&](std::vector<int64_t> shape, double deviation) {
      at::Tensor t = at::empty(shape, at::kFloat);
      for (int64_t i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = static_cast<float>(deviation * random.normal());
      return t;
    };
    const model::kernel::Kernels kernels = test::fixed_products(at::kBFloat16, false, at::kCPU);
    const at::Tensor x = normal({T, K}, 1).to(at::kBFloat16), w0 = normal({N, K}, 1).to(at::kBFloat16);
    const at::Tensor a = normal({rank, K}, 1), b = normal({N, rank}, 1e-4 / 2 / std::sqrt(rank));
    const auto of = [&](const at::Tensor& b_Nr) {
      model::op::Parameter p;
      p.value = w0, p.a_RK = a.to(at::kBFloat16), p.b_NR = b_Nr.mul(2).to(at::kBFloat16);
      at::Tensor out = at::empty({T, N}, at::kBFloat16);
      in_parts ? model::op::forward_in_parts(kernels, out, x, p) : model::op::forward(kernels, out, x, p);
      return out.to(at::kDouble);
    };
    const at::Tensor xd = x.to(at::kDouble), change = at::matmul(xd, 2 * at::matmul(b.to(at::kDouble), a.to(at::kDouble)).t());
    const at::Tensor base = of(at::zeros({N, rank})), got = of(b), want = at::matmul(xd, w0.to(at::kDouble).t()) + change;
    // Rounded once; both factors and what goes between them have 8 bits.
    EXPECT_LE(((got - want).abs() / (half_units(want) * 1.01 + change.abs() * 3 / 256 + 1e-4)).max().item<double>(), 1.0);
    const double move = change.pow(2).mean().sqrt().item<double>(), unit = half_units(want).pow(2).mean().sqrt().item<double>();
    EXPECT_NEAR(move / want.pow(2).mean().sqrt().item<double>(), 1e-4, 2e-5);
    EXPECT_NEAR(slope(got - base, change), 1.0, 5 * deviation_of_slope(unit, move, T * N) + 3.0 / 256);
  }
}

class LoraSmallChange : public ::testing::TestWithParam<bool> {};  // parity mode

TEST_P(LoraSmallChange, MovesLogProbabilitiesInBfloat16AsInFloat32) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Row> rows;
  RandomStream random(3, 1);
  for (int64_t i = 0; i < 500; ++i) {
    auto& ids = tokens.emplace_back();
    for (int64_t t = 0; t < 60; ++t) ids.push_back(static_cast<int32_t>(random.below(64)));
  }
  for (const auto& ids : tokens) rows.push_back({.prompt = std::span(ids).first(1), .response = std::span(ids).subspan(1)});
  LoraCase half(test::tiny_config(), at::kBFloat16, GetParam(), {4, 8}), single(test::tiny_config(), at::kFloat, false, {4, 8});
  single.model.values.copy_(half.model.values);
  single.trainer.start();
  const auto scores_by = [&](LoraCase& c, const model::ModelParameters& parameters) {
    std::vector<double> all;
    for (const auto& row : score(c.model.decoder, parameters, rows, 1.0, 4096)) all.insert(all.end(), row.begin(), row.end());
    return at::tensor(all, at::kDouble);
  };
  const auto logprobs = [&](LoraCase& c) {
    c.trainer.share_values();
    return scores_by(c, c.trainer.parameters());
  };
  const at::Tensor half_before = logprobs(half), before = logprobs(single);
  for (const model::ParameterEntry& e : half.trainer.lora()->table().entries) {
    if (!e.parameter.name.ends_with("lora_B.weight")) continue;
    at::Tensor b = half.trainer.lora()->table().view(half.trainer.lora()->values(), e);
    for (int64_t i = 0; i < b.numel(); ++i) b.view(-1)[i] = 3e-4 * random.normal();  // of W0 it makes 4e-4
  }
  single.trainer.lora()->values().copy_(half.trainer.lora()->values());
  const at::Tensor want = logprobs(single) - before, got = logprobs(half) - half_before;
  const auto rms = [](const at::Tensor& t) { return t.pow(2).mean().sqrt().item<double>(); };
  // Two passes in bfloat16 are each away from fp32 by what rounding does to one.
  const double deviation = std::sqrt(2.0) * rms(half_before - before) / (rms(want) * std::sqrt(static_cast<double>(want.numel())));
  EXPECT_LE(5 * deviation, 0.3) << "enough tokens to tell";
  EXPECT_NEAR(slope(got, want), 1.0, 5 * deviation);
  std::printf("of a change of 4e-4 bfloat16 shows %.2f; five deviations are %.2f\n", slope(got, want), 5 * deviation);
}

INSTANTIATE_TEST_SUITE_P(Modes, LoraSmallChange, ::testing::Bool());

TEST(Lora, ARestoredTrainerHasTheSameWeights) {
  const LoraRows batch;
  const model::LoraOptions lora{4, 16};
  LoraCase first(test::tiny_config(), at::kBFloat16, true, lora), second(test::tiny_config(), at::kBFloat16, true, lora);
  for (int i = 0; i < 3; ++i) first.trainer.supervised_step(batch.rows, 0.02);
  test::copy_state(first.trainer, second.trainer);
  EXPECT_TRUE(at::equal(first.trainer.lora()->values(), second.trainer.lora()->values()));
  first.trainer.supervised_step(batch.rows, 0.02);
  second.trainer.supervised_step(batch.rows, 0.02);
  EXPECT_TRUE(at::equal(first.trainer.lora()->values(), second.trainer.lora()->values()));
}

TEST(Lora, OnlyTheAdaptersCostMemoryAndTheyLearn) {
  const LoraRows batch;
  LoraCase c(test::tiny_config(), at::kFloat, false, {4, 16});
  const auto bytes = c.model.arena.by_owner();
  EXPECT_LT(bytes.at("gradients"), bytes.at("weights") / 2);
  EXPECT_LT(bytes.at("optimizer"), bytes.at("weights"));
  const double before = c.trainer.supervised_step(batch.rows, 1e-2).loss;
  double after = before;
  for (int i = 0; i < 40; ++i) after = c.trainer.supervised_step(batch.rows, 1e-2).loss;
  EXPECT_LT(after, 0.7 * before);
}

TEST(Lora, AnUnknownMatrixIsAnsweredWithTheKnownOnes) {
  const auto error_of = [](const model::ModelConfig& config, std::vector<std::string> targets) -> std::string {
    try {
      (void)model::lora_targets(config, {4, 16, std::move(targets)}, "model.lora_targets");
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error_of(test::tiny_config(), {"q_pro"}).find("`q_pro`"), std::string::npos);
  EXPECT_NE(error_of(test::tiny_config(), {"q_pro"}).find("q_proj, k_proj"), std::string::npos);
  EXPECT_NE(error_of(test::tiny_config(), {"lm_head"}).find("`lm_head`"), std::string::npos);
  EXPECT_NE(error_of(test::tiny_config(), {}).find("names no matrix"), std::string::npos);
  EXPECT_EQ(model::lora_targets(test::experts_config("deepseek_v3"), {4, 16}, ""),
            (std::vector<std::string>{"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj",
                                      "down_proj"}));
}

}  // namespace
}  // namespace tandem::train
