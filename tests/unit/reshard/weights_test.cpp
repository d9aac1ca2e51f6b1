// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/plan_weights.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tandem/reshard/plan.h"

namespace tandem::reshard {
namespace {

/// The dimensions of DeepSeek-V3, or the same family with few and small ones.
model::ModelConfig deepseek(bool is_small) {
  nlohmann::json config = {
      {"architectures", {"DeepseekV3ForCausalLM"}}, {"model_type", "deepseek_v3"}, {"hidden_size", 7168}, {"num_hidden_layers", 61},
      {"num_attention_heads", 128}, {"num_key_value_heads", 128}, {"intermediate_size", 18432}, {"moe_intermediate_size", 2048},
      {"n_routed_experts", 256}, {"n_shared_experts", 1}, {"num_experts_per_tok", 8}, {"n_group", 8}, {"topk_group", 4},
      {"first_k_dense_replace", 3}, {"norm_topk_prob", true}, {"routed_scaling_factor", 2.5}, {"scoring_func", "sigmoid"},
      {"q_lora_rank", 1536}, {"kv_lora_rank", 512}, {"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64}, {"v_head_dim", 128},
      {"vocab_size", 129280}, {"tie_word_embeddings", false}, {"max_position_embeddings", 4096}, {"rope_theta", 10000.0},
      {"rms_norm_eps", 1e-6}, {"hidden_act", "silu"}};
  if (is_small)
    config.update({{"hidden_size", 64}, {"num_hidden_layers", 5}, {"num_attention_heads", 4}, {"num_key_value_heads", 4},
                   {"intermediate_size", 96}, {"moe_intermediate_size", 32}, {"n_routed_experts", 8}, {"num_experts_per_tok", 2},
                   {"n_group", 2}, {"topk_group", 1}, {"first_k_dense_replace", 1}, {"q_lora_rank", 16}, {"kv_lora_rank", 16},
                   {"qk_nope_head_dim", 16}, {"qk_rope_head_dim", 8}, {"v_head_dim", 16}, {"vocab_size", 128}});
  return model::parse_config(config, "config.json");
}

/// The boxes of one rank in a table, by the name of the tensor.
std::map<std::string, Box> boxes_in(const Table& table, const model::ModelConfig& config, bool is_source, int rank) {
  std::map<std::string, Box> boxes;
  size_t number = 0;
  for (const auto& p : model::flat_order(model::family::parameters(config))) {
    const Table::Kind& kind = table.kinds[static_cast<size_t>(table.kind_of[number++])];
    for (const Piece& piece : table.holdings[static_cast<size_t>(is_source ? kind.source : kind.target)])
      if (piece.rank == rank) {
        EXPECT_TRUE(boxes.emplace(p.name, piece.box).second) << p.name;
      }
  }
  return boxes;
}

TEST(Weights, OfEveryRankAreThoseOfItsLayout) {
  const model::ModelConfig config = deepseek(true);
  const char* const layouts[] = {"dp8", "tp4,pp2", "pp4,dp2", "dp8,ep8", "dp2,tp4,ep4", "dp4,pp2,ep4", "dp4,tp2,ep2,etp2", "cp2,tp4",
                                 "dp4,pp2,vpp2", "2x(dp2,tp2,ep2)", "4x(tp2)"};
  for (const char* from : layouts)
    for (const char* to : layouts) {
      const model::Replicas layout[] = {model::parse_replicas(to, "to"), model::parse_replicas(from, "from")};
      const Table table = table_of(config, layout[1], layout[0]);
      EXPECT_EQ(make_plan(table, {}).alias, std::string(from) == to) << from << " to " << to;
      for (const bool is_source : {false, true})
        for (int rank = 0; rank < 8; ++rank) {
          const model::Layout& one = layout[is_source].layout;
          std::map<std::string, Box> expected;
          for (const TensorSpec& s : model::boxes_of(config, one, rank % one.world())) expected.emplace(s.name, s.box);
          EXPECT_EQ(boxes_in(table, config, is_source, rank), expected) << from << " to " << to << ", rank " << rank;
        }
    }
}

TEST(Weights, OfPartsMakeUpTheWhole) {
  const model::ModelConfig config = deepseek(true);
  const model::Replicas from = model::parse_replicas("tp4,pp2", "from"), to = model::parse_replicas("dp8,ep8", "to");
  const auto bytes = [&](Part part) { return make_plan(table_of(config, from, to, part), {}).stats.bytes_total; };
  EXPECT_EQ(bytes(Part::kAll), bytes(Part::kExperts) + bytes(Part::kDense));
  EXPECT_GT(bytes(Part::kExperts), 0);
}

/// What no sharing can undercut: of any set of ranks, what it alone can send, over its size. The sets that hold a fragment are tried.
double least_sent_max(const Plan& plan) {
  std::map<std::vector<int>, int64_t> demands;
  for (int32_t kind : plan.kind_of)
    for (const Fragment& f : plan.fragments[static_cast<size_t>(kind)])
      demands[f.holders] += f.box.num_elements() * plan.options.element_bytes * std::ssize(f.receivers);
  double most = static_cast<double>(plan.stats.bytes_total) / static_cast<double>(plan.stats.sent_bytes.size());
  for (const auto& [set, ignored] : demands) {
    int64_t bytes = 0;
    for (const auto& [holders, demand] : demands)
      if (std::ranges::includes(set, holders)) bytes += demand;
    most = std::max(most, static_cast<double>(bytes) / static_cast<double>(set.size()));
  }
  return most;
}

TEST(Weights, OfSeveralHoldersAreSentByAllOfThem) {
  model::ModelConfig config = deepseek(true);
  config.hidden_size = 512, config.intermediate_size = 1024, config.moe.intermediate_size = 256, config.vocab_size = 4096;
  int64_t num_plans = 0;
  const char* const sources[] = {"dp8",         "dp4,tp2",     "dp4,pp2",          "dp2,pp2,tp2", "dp8,ep4",
                                 "dp4,tp2,ep2", "dp4,pp2,ep2", "dp4,tp2,ep2,etp2", "dp4,cp2,ep4"};
  const char* const targets[] = {"dp8",         "tp4,dp2",          "dp8,ep8", "dp8,ep2",         "dp4,tp2,ep8",
                                 "pp4,dp2", "dp4,tp2,ep2,etp2", "8x(dp1)", "2x(dp2,tp2,ep2)"};
  for (const char* from : sources)
    for (const char* to : targets) {
      const Plan plan = make_plan(table_of(config, model::parse_replicas(from, "from"), model::parse_replicas(to, "to")), {});
      if (plan.stats.bytes_total == 0) continue;
      ++num_plans;
      EXPECT_LE(*std::ranges::max_element(plan.stats.sent_bytes), 1.1 * least_sent_max(plan)) << from << " to " << to;
    }
  EXPECT_GT(num_plans, 40);
}

TEST(Weights, OfDeepSeekV3AreSentByAllRanksEvenly) {
  // Its first stage has more dense weights than the others, so other nodes relay them.
  const model::Replicas from = model::parse_replicas("tp4,pp8,dp8,ep32", "from"), to = model::parse_replicas("dp128,tp2,ep256", "to");
  const PlanOptions options = {.bucket_bytes = 56 << 20, .ranks_per_node = 8};
  for (const Part part : {Part::kAll, Part::kDense}) {
    const Plan plan = make_plan(table_of(deepseek(false), from, to, part), options);
    EXPECT_LE(static_cast<double>(std::ranges::max(plan.stats.sent_bytes)), 1.1 * static_cast<double>(plan.stats.bytes_total) / 256);
    EXPECT_EQ(plan.stats.bytes_across_nodes, plan.stats.lower_bound_across_nodes_bytes);
    // Buckets fill the links: 1.3 and 1.6 times the least was seen, and four times where buckets take what comes.
    EXPECT_LE(plan.stats.modelled_s, 1.75 * busiest_rank_s(plan, 256));
  }
}

// A rank ends with one expert of each of the 58 sparse layers: 58 * 3 * 7168 * 2048 elements, of which one rank keeps all.
TEST(Weights, OfDeepSeekV3MoveOneExpertALayerToEachRank) {
  const model::ModelConfig config = deepseek(false);
  const model::Replicas from = model::parse_replicas("tp4,pp8,dp8,ep32", "from"), to = model::parse_replicas("dp128,tp2,ep256", "to");
  const int64_t bucket = 2 * 7168 * 2048 * 2;  // gate and up of one expert
  const Plan plan = make_plan(table_of(config, from, to, Part::kExperts), {.bucket_bytes = bucket, .ranks_per_node = 16});
  const int64_t expert = 3 * 7168 * 2048 * 2;
  EXPECT_EQ(plan.stats.bytes_total, (58 * 256 - 58) * expert);
  EXPECT_EQ(plan.stats.lower_bound_bytes, plan.stats.bytes_total);
  EXPECT_EQ(*std::ranges::max_element(plan.stats.received_bytes), 58 * expert);
  EXPECT_LE(plan.stats.staging_peak_bytes, bucket);
}

}  // namespace
}  // namespace tandem::reshard
