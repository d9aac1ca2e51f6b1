// SPDX-License-Identifier: Apache-2.0
// Adapters against the gradient of the whole matrix, of which theirs are projections.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "one_rank.h"
#include "tandem/base/error.h"

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
      LoraCase whole(config, at::kFloat, parity, {});
      whole.model.values.copy_(adapted.model.values);
      whole.trainer.start();
      const at::Tensor values = adapted.trainer.lora()->values().clone();
      const StepReport got = adapted.trainer.supervised_step(batch.rows, 0), want = whole.trainer.supervised_step(batch.rows, 0);
      EXPECT_EQ(got.logprobs, want.logprobs);
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

TEST(Lora, FreshAdaptersChangeNoBitAndTheStartStaysAtHand) {
  const LoraRows batch;
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TinyModel plain(test::tiny_config(), dtype);
    LoraCase c(test::tiny_config(), dtype, true, {4, 16, {"q_proj", "down_proj"}});
    const at::Tensor start = c.model.values.clone();
    EXPECT_EQ(c.trainer.supervised_step(batch.rows, 0).logprobs.size(), batch.rows.size());
    EXPECT_TRUE(at::equal(c.model.values, start)) << "B is zero";
    const auto before = score(c.model.decoder, c.model.parameters, batch.rows, 1.0, 8192);
    c.trainer.supervised_step(batch.rows, 0.05);
    EXPECT_NE(score(c.model.decoder, c.model.parameters, batch.rows, 1.0, 8192), before);
    EXPECT_EQ(score(c.model.decoder, c.trainer.lora()->base(), batch.rows, 1.0, 8192), before);
    for (const model::ParameterEntry& e : c.model.table.entries) {
      const bool same = at::equal(c.model.table.view(c.model.values, e), c.model.table.view(start, e));
      const std::string& name = e.parameter.name;
      EXPECT_EQ(same, name.find("q_proj.weight") == std::string::npos && name.find("down_proj") == std::string::npos) << name;
    }
  }
}

TEST(Lora, ARestoredTrainerHasTheSameWeights) {
  const LoraRows batch;
  const model::LoraOptions lora{4, 16};
  LoraCase first(test::tiny_config(), at::kBFloat16, true, lora), second(test::tiny_config(), at::kBFloat16, true, lora);
  for (int i = 0; i < 3; ++i) first.trainer.supervised_step(batch.rows, 0.02);
  test::copy_state(first.trainer, second.trainer);
  EXPECT_TRUE(at::equal(first.model.values, second.model.values));
  first.trainer.supervised_step(batch.rows, 0.02);
  second.trainer.supervised_step(batch.rows, 0.02);
  EXPECT_TRUE(at::equal(first.model.values, second.model.values));
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
