// SPDX-License-Identifier: Apache-2.0
// A critic's values, advantages, loss and gradients against those of transformers and autograd: tests/fixtures/make_score_models.py.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "one_rank.h"
#include "tandem/algo/advantage.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/checkpoint/safetensors.h"
#include "tandem/model/model_on_rank.h"

namespace tandem::train {
namespace {

const std::string kFixtures = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/";
constexpr double kBound = 1e-5;

std::vector<float> floats(const at::Tensor& t) { return {t.data_ptr<float>(), t.data_ptr<float>() + t.numel()}; }

double farthest(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double most = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i)
    most = std::max(most, std::abs(static_cast<double>(got[i]) - want[i]) / std::max(1.0, std::abs(static_cast<double>(want[i]))));
  return most;
}

// The three sequences of a fixture as rows, and what they should say.
struct Golden {
  nlohmann::json said;
  checkpoint::SafetensorsFile file;
  std::vector<std::vector<int32_t>> ids;
  std::vector<Row> rows;

  explicit Golden(const std::string& dir) : said(read_json_object(dir + "/critic.json")), file(dir + "/critic.safetensors") {
    const size_t prompt = said["prompt_tokens"];
    for (int i = 0; i < 3; ++i) {
      const at::Tensor t = column(i, "input_ids");
      ids.emplace_back(t.data_ptr<int64_t>(), t.data_ptr<int64_t>() + t.numel());
    }
    for (int i = 0; i < 3; ++i) {
      Row& row = rows.emplace_back();
      row.prompt = std::span(ids[static_cast<size_t>(i)]).first(prompt);
      row.response = std::span(ids[static_cast<size_t>(i)]).subspan(prompt);
      row.values = floats(column(i, "old_values"));
    }
  }
  at::Tensor column(int i, const char* name) const { return file.view("seq" + std::to_string(i) + "." + name); }
};

algo::TokenAdvantages gae(const Golden& golden, int i) {
  algo::Algorithm algorithm;
  algorithm.advantage = algo::Advantage::kGae;
  algorithm.gamma = golden.said["gamma"];
  algorithm.lambda = golden.said["lambda"];
  const auto doubles = [](const std::vector<float>& values) { return std::vector<double>(values.begin(), values.end()); };
  const std::vector<double> rewards = doubles(floats(golden.column(i, "rewards")));
  const std::vector<double> values = doubles(floats(golden.column(i, "old_values")));
  return algo::token_advantages({rewards, {}, values}, 0, algorithm);
}

void check_critic(const std::string& name) {
  const std::string dir = kFixtures + name;
  Golden golden(dir);
  device::Arena arena("device");
  const std::unique_ptr<comm::Group> alone = comm::single();
  const model::kernel::Kernels kernels(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
  model::ModelOnRank model(model::read_config(dir, model::ModelUse::kScores), {}, kernels, {arena, "weights"});
  model.load(dir);
  const auto values = token_values(model.decoder(), model.parameters(), golden.rows, 1000);
  algo::Algorithm algorithm;
  algorithm.aggregation = algo::Aggregation::kTokenMean;
  for (int i = 0; i < 3; ++i) {
    Row& row = golden.rows[static_cast<size_t>(i)];
    EXPECT_LE(farthest(values[static_cast<size_t>(i)], floats(golden.column(i, "values"))), kBound) << name << ": values " << i;
    const algo::TokenAdvantages tokens = gae(golden, i);
    const std::vector<float> advantages(tokens.advantages_T.begin(), tokens.advantages_T.end());
    row.returns.assign(tokens.returns_T.begin(), tokens.returns_T.end());
    EXPECT_LE(farthest(advantages, floats(golden.column(i, "advantages"))), kBound) << name << ": advantages " << i;
    EXPECT_LE(farthest(row.returns, floats(golden.column(i, "returns"))), kBound) << name << ": returns " << i;
  }
  for (const int64_t budget : {1, 1000}) {  // a micro-batch for each row, and one for all
    Options options;
    options.micro_batch_tokens = budget;
    Trainer trainer(options, {model.table(), model.decoder(), model.values(), Ranks::of_one(*alone), arena});
    trainer.start();
    const StepReport report = trainer.value_step(golden.rows, algorithm, golden.said["value_clip"], 0.0);
    EXPECT_NEAR(report.loss, golden.said["loss"].get<double>(), kBound);
    for (const model::ParameterEntry& e : model.table().entries) {
      const at::Tensor grad = model.table().view(trainer.grads(), e);
      const double want = golden.said["grad_l2_norms"].at(e.parameter.name);
      EXPECT_NEAR(grad.norm().item<double>(), want, kBound * std::max(1.0, want)) << e.parameter.name;
      if (const std::string kept = "grad." + e.parameter.name; golden.file.contains(kept)) {
        EXPECT_LE((grad - golden.file.view(kept)).abs().max().item<double>(), kBound) << kept;
      }
    }
  }
}

TEST(Critic, SaysAndLearnsWhatTransformersDoes) {
  check_critic("qwen2_score1");
  check_critic("qwen3_score1");
}

// 1 - var(returns - values) / var(returns).
TEST(Critic, TellsHowMuchItKnew) {
  Golden golden(kFixtures + "qwen2_score1");
  device::Arena arena("device");
  const std::unique_ptr<comm::Group> alone = comm::single();
  const model::kernel::Kernels kernels(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
  const std::string dir = kFixtures + "qwen2_score1";
  model::ModelOnRank model(model::read_config(dir, model::ModelUse::kScores), {}, kernels, {arena, "weights"});
  model.load(dir);
  Trainer trainer({}, {model.table(), model.decoder(), model.values(), Ranks::of_one(*alone), arena});
  trainer.start();
  const auto knew = [&](auto returns_of) {
    for (Row& row : golden.rows) {
      row.returns.clear();
      for (float value : row.values) row.returns.push_back(returns_of(value));
    }
    return trainer.value_step(golden.rows, algo::Algorithm{}, 0.2, 0.0).value.explained_variance;
  };
  EXPECT_NEAR(knew([](float value) { return value + 3; }), 1.0, 1e-6) << "but for a constant";
  EXPECT_NEAR(knew([](float value) { return 2 * value; }), 0.75, 1e-6);
  EXPECT_EQ(knew([](float) { return 1.0f; }), 0.0) << "returns that are all alike";
}

// A language model's directory has no score head: a critic begins without an opinion.
TEST(Critic, BeginsWithoutAnOpinion) {
  const std::string dir = kFixtures + "qwen2_tied";
  model::ModelConfig config = model::read_config(dir);
  config.num_labels = 1;
  device::Arena arena("device");
  const std::unique_ptr<comm::Group> alone = comm::single();
  const model::kernel::Kernels kernels(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
  model::ModelOnRank model(config, {}, kernels, {arena, "weights"});
  EXPECT_THROW(model.load(dir), UserError);
  model.load(dir, model::Head::kMayBegin);
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6};
  Row row;
  row.prompt = std::span(ids).first(2), row.response = std::span(ids).subspan(2);
  EXPECT_EQ(token_values(model.decoder(), model.parameters(), std::span(&row, 1), 100)[0], std::vector<float>(4, 0.0f));
  row.values.assign(4, 0), row.returns.assign(4, 1);
  Trainer trainer({}, {model.table(), model.decoder(), model.values(), Ranks::of_one(*alone), arena});
  trainer.start();
  const double first = trainer.value_step(std::span(&row, 1), algo::Algorithm{}, 10, 1e-2).loss;
  for (int step = 0; step < 20; ++step) trainer.value_step(std::span(&row, 1), algo::Algorithm{}, 10, 1e-2);
  EXPECT_NEAR(first, 0.5, 1e-6);
  EXPECT_LT(trainer.value_step(std::span(&row, 1), algo::Algorithm{}, 10, 0).loss, 0.1) << "and gets one";
}

}  // namespace
}  // namespace tandem::train
