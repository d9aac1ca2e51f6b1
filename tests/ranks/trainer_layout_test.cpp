// SPDX-License-Identifier: Apache-2.0
// One training step under layouts that no two-rank run reaches: replicated kv heads, dp and tp at once, DP ranks without rows.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <mutex>

#include "../tiny_model.h"
#include "tandem/algo/algorithm.h"
#include "tandem/base/check.h"
#include "tandem/device/process.h"
#include "tandem/train/trainer.h"

namespace tandem::train {
namespace {

struct Result {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> weights;  // whole, by name
  std::vector<std::vector<float>> logprobs;   // of all rows at the last step
  std::vector<int64_t> held_bytes, peak_bytes;  // by rank: between steps, and of the last step's passes
};

std::vector<std::vector<int32_t>> sequences(int64_t n) {
  std::vector<std::vector<int32_t>> all;
  RandomStream random(3, 1);
  for (int64_t i = 0; i < n; ++i) {
    auto& ids = all.emplace_back();
    for (int64_t t = 4 + random.below(30); t > 0; --t) ids.push_back(static_cast<int32_t>(random.below(64)));
  }
  return all;
}

struct Extra {
  int64_t lora_rank = 0;
  double balance = 0, z = 0, bias_rate = 0;
  double deviation = 0.3;  // of the weights
  const char* recompute = "none";
  bool replay = false;     // made-up routes
  bool critic = false;     // value steps of a model with a score head
  double entropy = 0;      // above 0: policy steps with made-up advantages and this bonus
  bool asked = false;      // the same by a loss of the user's
  std::vector<int64_t> budgets = {};  // of the arenas, by rank; none: no bound
  c10::ScalarType dtype = at::kFloat;
};

// Experts for all tokens of a sequence but the last, in every sparse layer; each choice once.
std::vector<std::vector<int16_t>> made_up_routes(const std::vector<std::vector<int32_t>>& tokens, const model::ModelConfig& config) {
  std::vector<std::vector<int16_t>> all(tokens.size());
  const int64_t k = config.moe.experts_per_token, E = config.moe.num_experts;
  for (size_t i = 0; i < tokens.size() && E > 0; ++i)
    for (size_t t = 0; t + 1 < tokens[i].size(); ++t)
      for (int64_t layer = 0; layer < config.num_layers; ++layer)
        for (int64_t j = 0; j < k && config.is_sparse(layer);
             ++j) all[i].push_back(static_cast<int16_t>((tokens[i][t] * 5 + layer * 3 + j) % E));
  return all;
}

// What a critic said of each token, and should have said.
void set_values(Row& row, size_t number) {
  RandomStream random(11, number);
  for (size_t t = 0; t < row.response.size(); ++t) {
    row.values.push_back(static_cast<float>(random.normal()));
    row.returns.push_back(static_cast<float>(random.normal()));
  }
}

// REINFORCE with a bonus for entropy, as means over tokens: what a policy step minimises where the ratio is 1.
LossGradient asked(const LossColumns* columns, double entropy) {
  if (!columns) return {};
  const algo::PolicyLossInput& in = columns->policy;
  const at::Tensor by_logprob_R = -in.advantages_T / in.global_tokens;
  const at::Tensor by_entropy_R = at::full_like(by_logprob_R, -entropy / in.global_tokens);
  return {(by_logprob_R + columns->entropy_R * by_entropy_R).sum().item<double>(), by_logprob_R, by_entropy_R};
}

Result train(const model::Layout& layout, const model::ModelConfig& config, int64_t num_rows, const Extra& extra = {}) {
  const auto tokens = sequences(num_rows);
  const auto routes = made_up_routes(tokens, config);
  Result result;
  result.logprobs.resize(tokens.size());
  result.held_bytes.resize(static_cast<size_t>(layout.world()));
  result.peak_bytes = result.held_bytes;
  std::mutex mutex;
  comm::run_local(layout.world(), 60, [&](comm::Group& world) {
    device::set_compute_threads(1);
    comm::Mesh mesh(world, model::mesh_sizes(layout));
    const auto rank = static_cast<size_t>(world.rank());
    device::Arena arena("device", extra.budgets.empty() ? 0 : extra.budgets[rank], test::device_under_test(world.rank()));
    const model::kernel::Kernels kernels = test::fixed_products(extra.dtype, false, arena.device());
    const model::ParameterTable table = model::parameter_table(config, layout, world.rank());
    const model::Decoder decoder(config, kernels, model::place_in(layout, mesh));
    at::Tensor values = arena.allocate("weights", {table.num_elements}, extra.dtype);
    model::initialize_parameters(table, values, 9, extra.deviation);
    Options options;
    options.micro_batch_tokens = 64;
    options.recompute = extra.recompute;
    options.router_balance_coef = extra.balance;
    options.router_z_coef = extra.z;
    options.router_bias_rate = extra.bias_rate;
    options.eps = 1e-3;  // Adam divides by the size of a gradient; where that is rounding alone, its sign is chance
    Trainer trainer(options, {table, decoder, values, Ranks::in(mesh, config), arena, {extra.lora_rank, 8}, 5});
    trainer.start();
    std::vector<Row> mine;
    std::vector<size_t> indices;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (static_cast<int>(i) % layout.dp != layout.dp_rank(world.rank())) continue;
      Row row;
      row.prompt = std::span(tokens[i]).first(2);
      row.response = std::span(tokens[i]).subspan(2);
      if (extra.replay) row.routes = routes[i];
      if (extra.critic) set_values(row, i);
      mine.push_back(row);
      indices.push_back(i);
    }
    StepReport report;
    algo::Algorithm algorithm;
    algorithm.entropy_coef = extra.entropy;
    algorithm.aggregation = algo::Aggregation::kTokenMean;
    UserLoss loss;
    if (extra.asked) loss = [&](const LossColumns* columns) { return asked(columns, extra.entropy); };
    const std::vector<float> sampled(64, -2.0f);
    for (size_t i = 0; i < mine.size() && extra.entropy > 0; ++i) {
      mine[i].behavior = std::span(sampled).first(mine[i].response.size());
      mine[i].advantages.assign(mine[i].response.size(), static_cast<float>(indices[i] % 3) - 0.8f);
    }
    for (int step = 0; step < 4; ++step) {
      report = extra.critic        ? trainer.value_step(mine, algorithm, 0.2, 1e-3)
               : extra.entropy > 0 ? trainer.policy_step(mine, algorithm, 0.7, 1e-3, loss)
                                 : trainer.supervised_step(mine, extra.lora_rank > 0 ? 1e-2 : 1e-3);
      if (world.rank() == 0) result.norms.push_back(report.grad_norm);
      if (world.rank() == 0 && extra.critic) result.norms.push_back(report.loss), result.norms.push_back(report.value.explained_variance);
    }
    std::lock_guard lock(mutex);
    result.held_bytes[rank] = arena.bytes();
    result.peak_bytes[rank] = report.activation_peak_bytes;
    if (layout.speaks(world.rank()))
      for (size_t i = 0; i < indices.size(); ++i) result.logprobs[indices[i]] = report.logprobs[i];
    for (const model::ParameterEntry& e : table.entries) {
      at::Tensor& whole = result.weights[e.parameter.name];
      if (!whole.defined()) whole = at::full(e.parameter.shape, NAN);
      at::Tensor part = whole;
      for (size_t d = 0; d < e.box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), e.box.begin[d], e.box.extent(d));
      const at::Tensor held = table.view(values, e).to(at::kFloat).cpu();
      EXPECT_TRUE(part.isnan().any().item<bool>() || at::equal(part, held)) << e.parameter.name << ": ranks hold different copies";
      part.copy_(held);
    }
  });
  return result;
}

void expect_same(const Result& got, const Result& want, const std::string& name) {
  double norm = 0, weight = 0, logprob = 0;
  for (size_t i = 0; i < want.norms.size(); ++i) norm = std::max(norm, std::abs(got.norms[i] / want.norms[i] - 1));
  for (const auto& [key, tensor] : want.weights) weight = std::max(weight, (got.weights.at(key) - tensor).abs().max().item<double>());
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    ASSERT_EQ(got.logprobs[i].size(), want.logprobs[i].size());
    for (size_t t = 0; t < want.logprobs[i].size(); ++t)
      logprob = std::max(logprob, static_cast<double>(std::abs(got.logprobs[i][t] / want.logprobs[i][t] - 1)));
  }
  EXPECT_LE(norm, 1e-5) << name;
  EXPECT_LE(weight, 1e-5) << name;
  EXPECT_LE(logprob, 1e-5) << name;
  std::printf("%-28s grad norm %.2g, logprob %.2g, weights after four steps %.2g\n", name.c_str(), norm, logprob, weight);
}

TEST(TrainerLayout, EveryLayoutTrainsAsOneRankDoes) {
  for (const char* family : {"qwen2", "qwen3"})
    for (int64_t kv_heads : {1, 2, 4}) {
      const model::ModelConfig config = test::config_of(family, kv_heads);
      const Result want = train({1, 1}, config, 10);
      for (const model::Layout& layout : {model::Layout{1, 2}, {1, 4}, {2, 1}, {2, 2}, {3, 1}})
        expect_same(train(layout, config, 10), want, join_text(family, ", ", model::to_string(layout), ", kv heads ", kv_heads));
    }
}

// 67 rows: 34 and 33, three times 17 and 16, or 23, 23 and 21.
TEST(TrainerLayout, AVocabularyThatTpDoesNotDivideToo) {
  for (const bool tied : {true, false}) {
    model::ModelConfig config = test::config_of("qwen2", 2);
    config.vocab_size = 67;
    config.tied_embeddings = tied;
    const Result want = train({1, 1}, config, 10);
    for (const char* layout : {"tp2", "tp4", "dp2,tp2", "cp2,tp2", "tp2,pp2"})
      expect_same(train(model::parse_layout(layout, ""), config, 10), want, join_text("67 ids, ", tied ? "tied, " : "", layout));
    config.num_heads = 6, config.num_kv_heads = 3;
    expect_same(train({1, 3}, config, 10), train({1, 1}, config, 10), join_text("67 ids, ", tied ? "tied, " : "", "tp3"));
  }
}

// Deep models amplify rounding, the more so the larger their weights are.
constexpr Extra kDeep{.deviation = 0.15};

model::ModelConfig deep(model::ModelConfig config) {
  config.num_layers = 5;  // every stage and chunk has some, not the same number
  config.tied_embeddings = config.family == "qwen2";
  return config;
}

TEST(TrainerLayout, PipelinesToo) {
  for (const model::ModelConfig& config : {deep(test::config_of("qwen2", 2)), deep(test::config_of("qwen3", 2)),
                                           deep(test::experts_config("qwen3_moe")),
                                           deep(test::experts_config("deepseek_v3"))}) {
    const Result want = train({1, 1}, config, 10, kDeep);
    for (const char* layout : {"pp2", "pp4", "tp2,pp2", "dp2,pp2", "dp2,pp2,vpp2", "tp2,pp2,vpp2"})
      expect_same(train(model::parse_layout(layout, ""), config, 10, kDeep), want, join_text(config.family, ", ", layout));
  }
}

// Its gradient passes the head of each TP rank, whose parts of the vocabulary are not alike, and those of context-parallel ranks.
TEST(TrainerLayout, TheEntropyBonusToo) {
  model::ModelConfig config = deep(test::config_of("qwen2", 2));
  config.vocab_size = 67;
  const Extra small{.deviation = 0.15, .entropy = 1e-9}, extra{.deviation = 0.15, .entropy = 0.5};
  const Result want = train({1, 1}, config, 10, extra);
  EXPECT_GT(std::abs(want.norms[0] / train({1, 1}, config, 10, small).norms[0] - 1), 1e-2) << "the bonus is in the gradient";
  for (const char* layout : {"dp2", "tp2", "tp4", "pp2", "cp2", "dp2,tp2", "cp2,tp2", "tp2,pp2"})
    expect_same(train(model::parse_layout(layout, ""), config, 10, extra), want, join_text("entropy, ", layout));
}

// 3 rows: some replicas have none. Where the arenas are full one pass waits for the loss (a round of them under vpp), else all do.
TEST(TrainerLayout, ALossOfTheUsersToo) {
  for (const model::ModelConfig& config : {deep(test::config_of("qwen2", 2)), deep(test::experts_config("qwen3_moe"))})
    for (int64_t num_rows : {10, 3}) {
      const bool sparse = config.moe.num_experts > 0;
      Extra extra{.balance = sparse ? 0.1 : 0.0, .z = sparse ? 0.01 : 0.0, .deviation = 0.15, .entropy = 0.5};
      const Result want = train({1, 1}, config, num_rows, extra);
      extra.asked = true;
      std::vector<std::string> layouts = {"dp1", "dp4", "tp2", "cp2", "tp2,pp2", "cp2,pp2", "pp2,vpp2", "dp2,pp2,vpp2"};
      if (sparse) layouts.insert(layouts.end(), {"dp4,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2"});
      for (const std::string& text : layouts) {
        const model::Layout layout = model::parse_layout(text, "");
        const Result wide = train(layout, config, num_rows, extra);
        expect_same(wide, want, join_text("asked, ", config.family, ", rows ", num_rows, ", ", text));
        Extra full = extra;
        for (const int64_t bytes : wide.held_bytes) full.budgets.push_back(bytes + 1);
        const Result tight = train(layout, config, num_rows, full);
        EXPECT_EQ(tight.norms, wide.norms) << text;
        EXPECT_EQ(tight.logprobs, wide.logprobs) << text;
        for (const auto& [name, tensor] : wide.weights) EXPECT_TRUE(at::equal(tight.weights.at(name), tensor)) << text << " " << name;
        if (num_rows == 10 && layout.dp == 1 && layout.vpp == 1) EXPECT_GT(wide.peak_bytes[0], tight.peak_bytes[0] * 3 / 2) << text;
      }
    }
}

TEST(TrainerLayout, ContextParallelRanksToo) {
  for (const model::ModelConfig& config : {deep(test::config_of("qwen2", 2)), deep(test::experts_config("qwen3_moe")),
                                           deep(test::experts_config("deepseek_v3"))}) {
    const Extra extra{.balance = config.moe.num_experts > 0 ? 0.1 : 0.0, .deviation = 0.15};
    const Result want = train({1, 1}, config, 10, extra);
    std::vector<std::string> layouts = {"cp2", "cp3", "cp4", "cp2,tp2", "dp2,cp2", "cp2,pp2", "dp2,cp2,tp2"};
    if (config.moe.num_experts > 0) layouts.insert(layouts.end(), {"cp2,ep2", "dp2,cp2,ep4", "cp2,tp2,ep2,etp2"});
    for (const std::string& layout : layouts)
      expect_same(train(model::parse_layout(layout, ""), config, 10, extra), want, join_text(config.family, ", ", layout));
  }
}

TEST(TrainerLayout, ACriticToo) {
  for (model::ModelConfig config : {deep(test::config_of("qwen2", 2)), deep(test::experts_config("qwen3_moe")),
                                    deep(test::experts_config("deepseek_v3"))}) {
    config.num_labels = 1;
    const Extra extra{.deviation = 0.15, .critic = true};
    const Result want = train({1, 1}, config, 10, extra);
    std::vector<std::string> layouts = {"dp2", "tp2", "dp2,pp2", "pp2,vpp2", "tp2,pp2", "cp2", "cp2,tp2"};
    if (config.moe.num_experts > 0) layouts.insert(layouts.end(), {"dp2,ep2", "dp2,tp2,ep2,etp2"});
    for (const std::string& layout : layouts)
      expect_same(train(model::parse_layout(layout, ""), config, 10, extra), want, join_text("critic, ", config.family, ", ", layout));
  }
}

// What a pass computes again it computes with all ranks of its groups: the same bits.
TEST(TrainerLayout, RecomputeChangesNoBitUnderAnyLayout) {
  for (const model::ModelConfig& config : {deep(test::config_of("qwen2", 2)), deep(test::experts_config("deepseek_v3"))}) {
    std::vector<std::string> layouts = {"tp2,pp2", "cp2,tp2", "dp2,pp2,vpp2"};
    if (config.moe.num_experts > 0) layouts.insert(layouts.end(), {"dp2,tp2,ep2,etp2", "dp2,ep2"});
    for (const std::string& text : layouts) {
      const model::Layout layout = model::parse_layout(text, "");
      const Result want = train(layout, config, 10, kDeep);
      for (const char* recompute : {"selective", "full"}) {
        Extra extra = kDeep;
        extra.recompute = recompute;
        const Result got = train(layout, config, 10, extra);
        EXPECT_EQ(got.norms, want.norms) << text << " " << recompute;
        EXPECT_EQ(got.logprobs, want.logprobs) << text << " " << recompute;
      }
    }
  }
}

// With the balance loss, and replicas that have no rows to know it from.
TEST(TrainerLayout, ReplayedRoutesToo) {
  for (const char* family : {"qwen3_moe", "deepseek_v3"})
    for (int64_t num_rows : {10, 3}) {
      const model::ModelConfig config = deep(test::experts_config(family));
      const Extra extra{.balance = 0.1, .deviation = 0.15, .replay = true};
      const Result want = train({1, 1}, config, num_rows, extra);
      for (const char* layout : {"dp4,ep4", "dp2,tp2,ep4", "cp2,tp2", "tp2,pp2", "dp2,pp2,ep2"})
        expect_same(train(model::parse_layout(layout, ""), config, num_rows, extra), want, join_text("replayed ", family, ", ", layout));
    }
}

// 3 rows: some replicas have fewer micro-batches, or none.
TEST(TrainerLayout, ExpertsOverDataParallelRanksToo) {
  for (const char* family : {"qwen3_moe", "deepseek_v3"})
    for (int64_t num_rows : {10, 3}) {
      const model::ModelConfig config = deep(test::experts_config(family));
      const Extra extra{.balance = 0.1, .z = 0.01, .bias_rate = config.moe.correction_bias ? 0.01 : 0.0, .deviation = 0.15};
      const Result want = train({1, 1}, config, num_rows, extra);
      for (const char* layout : {"dp2,ep2", "dp4,ep2", "dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2", "tp4,ep2",
                                 "tp4,ep2,etp2", "dp2,tp2,pp2,ep4"})
        expect_same(train(model::parse_layout(layout, ""), config, num_rows, extra), want, join_text(family, ", ", layout, ", rows ",
                                                                                                     num_rows));
    }
}

TEST(TrainerLayout, ExpertsAndLatentsToo) {
  for (const char* family : {"qwen3_moe", "deepseek_v3"}) {
    const model::ModelConfig config = test::experts_config(family);
    const Result want = train({1, 1}, config, 10);
    for (const model::Layout& layout : {model::Layout{1, 2}, {1, 4}, {2, 1}, {2, 2}, {1, 2, 2}, {1, 4, 4}, {1, 4, 2, 2}, {2, 2, 2}})
      expect_same(train(layout, config, 10), want, join_text(family, ", ", model::to_string(layout)));
  }
}

TEST(TrainerLayout, RouterLossesAndBiasesToo) {
  for (const char* family : {"qwen3_moe", "deepseek_v3"}) {
    const model::ModelConfig config = test::experts_config(family);
    const Extra extra{0, 0.3, 0.1, config.moe.correction_bias ? 0.01 : 0.0};
    const Result want = train({1, 1}, config, 10, extra), without = train({1, 1}, config, 10);
    EXPECT_GT(std::abs(want.norms[0] / without.norms[0] - 1), 1e-3) << "the losses are in the gradient";
    for (const model::Layout& layout : {model::Layout{1, 2}, {2, 1}, {2, 2}, {1, 2, 2}, {2, 2, 2}})
      expect_same(train(layout, config, 10, extra), want, join_text("router losses, ", family, ", ", model::to_string(layout)));
  }
}

TEST(TrainerLayout, AdaptersToo) {
  std::vector<model::ModelConfig> configs = {test::experts_config("qwen3_moe"), test::experts_config("deepseek_v3")};
  for (int64_t kv_heads : {1, 2, 4}) configs.push_back(test::config_of("qwen2", kv_heads));
  for (const model::ModelConfig& config : configs) {
    const Result want = train({1, 1}, config, 10, {3});
    EXPECT_NE(want.norms.front(), want.norms.back());
    for (const model::Layout& layout : {model::Layout{1, 2}, {1, 4}, {2, 1}, {2, 2}})
      expect_same(train(layout, config, 10, {3}), want,
                  join_text("adapters, ", config.family, ", ", model::to_string(layout), ", kv heads ", config.num_kv_heads));
  }
}

// Where passes go through the adapters. Ranks round their parts of a sum in bfloat16, 1/256, before they add them up.
TEST(TrainerLayout, AdaptersInBfloat16ToWhatRoundingDoes) {
  for (const model::ModelConfig& config : {deep(test::config_of("qwen2", 2)), deep(test::experts_config("deepseek_v3"))}) {
    const Extra extra{.lora_rank = 3, .deviation = 0.15, .replay = config.moe.num_experts > 0, .dtype = at::kBFloat16};
    const Result want = train({1, 1}, config, 10, extra);
    EXPECT_GT(std::abs(want.norms.back() / want.norms.front() - 1), 0.1) << "the adapters move";
    for (const char* layout : {"dp2", "tp2", "tp4", "pp2", "cp2", "tp2,pp2"}) {
      const Result got = train(model::parse_layout(layout, ""), config, 10, extra);
      for (size_t i = 0; i < want.norms.size(); ++i)
        EXPECT_NEAR(got.norms[i] / want.norms[i], 1.0, 5.0 / 256) << config.family << ", " << layout << ", step " << i;
    }
  }
}

TEST(TrainerLayout, ADataParallelRankMayHaveNoRow) {
  expect_same(train({3, 1}, test::config_of("qwen2", 2), 2), train({1, 1}, test::config_of("qwen2", 2), 2), "dp3 with two rows");
}

}  // namespace
}  // namespace tandem::train
