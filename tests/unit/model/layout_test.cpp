// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/layout.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "../../tiny_model.h"
#include "tandem/base/error.h"

namespace tandem::model {
namespace {

ModelConfig config_of(int64_t heads, int64_t kv_heads) {
  ModelConfig c = test::tiny_config();
  c.num_heads = heads;
  c.num_kv_heads = kv_heads;
  return c;
}

const ParameterEntry& entry(const ParameterTable& table, const std::string& name) {
  for (const ParameterEntry& e : table.entries)
    if (e.parameter.name == name) return e;
  throw std::out_of_range(name);
}

TEST(Layout, StandsSideBySideWithItsEqual) {
  const Replicas two = parse_replicas("2x(dp64,tp2,ep128)", "here");
  EXPECT_EQ(two, (Replicas{2, {.dp = 64, .tp = 2, .ep = 128}}));
  EXPECT_EQ(two.world(), 256);
  EXPECT_EQ(parse_replicas(to_string(two), "here"), two);
  EXPECT_EQ(parse_replicas("dp2,tp2", "here"), (Replicas{1, {.dp = 2, .tp = 2}}));
  for (const char* wrong : {"x(dp2)", "0x(dp2)", "2x(dp2", "2x(dp2)x", "2 x(dp2)", "-1x(dp2)", "1048576x(dp2)", "2x(2x(dp2))"})
    EXPECT_THROW(parse_replicas(wrong, "here"), UserError) << wrong;
}

TEST(Layout, IsWrittenAsAxesAndDegrees) {
  EXPECT_EQ(parse_layout("", "here"), (Layout{1, 1}));
  EXPECT_EQ(parse_layout("dp2,tp4", "here"), (Layout{2, 4}));
  EXPECT_EQ(parse_layout("tp4,dp2", "here"), (Layout{2, 4}));
  EXPECT_EQ(parse_layout(to_string(Layout{3, 2}), "here"), (Layout{3, 2}));
  EXPECT_EQ(parse_layout("dp2,pp1", "here"), (Layout{2, 1}));
  EXPECT_EQ(parse_layout("dp2,ep2", "here"), (Layout{2, 1, 2}));
  EXPECT_EQ(parse_layout("dp2,tp2,ep2,etp2", "here"), (Layout{2, 2, 2, 2}));
  EXPECT_EQ(parse_layout("tp2,etp2", "here"), (Layout{1, 2}));
  EXPECT_EQ(parse_layout("dp2,ep2,etp1", "here"), (Layout{2, 1, 2}));
  EXPECT_EQ(to_string(parse_layout("tp4,ep2,etp2", "here")), "dp1,tp4,ep2,etp2");
  for (const char* wrong : {"dp", "2", "dp0", "dp-1", "xp2", "dp2;tp2", "vpp2", "ep2", "dp2,ep4", "dp3,tp4,ep6", "tp2,etp3,ep2", "dp2x", "dp2,dp4", "dp2,cp3,ep2", "dp99999999"}) EXPECT_THROW(parse_layout(wrong, "here"), UserError) << wrong;
}

TEST(Layout, TensorParallelRanksAreTheFastest) {
  const Layout layout{2, 4};
  EXPECT_EQ(layout.world(), 8);
  EXPECT_EQ(layout.tp_rank(5), 1);
  EXPECT_EQ(layout.dp_rank(5), 1);
}

TEST(Layout, ARankThatItDoesNotHaveHasNoDataParallelIndex) {
  const Layout layout{2, 4};
  for (int rank = 0; rank < layout.world(); ++rank) EXPECT_EQ(layout.dp_rank_or_none(rank), layout.dp_rank(rank));
  EXPECT_EQ(layout.dp_rank_or_none(-1), -1);
  EXPECT_EQ(layout.dp_rank_or_none(8), -1);
}

TEST(Layout, ADegreeThatCannotCutTheModelIsAUserError) {
  EXPECT_NO_THROW(check_layout({1, 2}, config_of(4, 2), Use::kTraining, "here"));
  EXPECT_NO_THROW(check_layout({1, 4}, config_of(4, 2), Use::kTraining, "here"));
  EXPECT_THROW(check_layout({1, 3}, config_of(4, 2), Use::kTraining, "here"), UserError);
  EXPECT_THROW(check_layout({1, 8}, config_of(4, 2), Use::kTraining, "here"), UserError);
  EXPECT_THROW(check_layout({1, 4}, config_of(12, 3), Use::kTraining, "here"), UserError);
}

TEST(Layout, TheLastRankHoldsWhatIsLeftOfTheVocabulary) {
  struct Case {
    int64_t vocab_size;
    std::vector<int64_t> rows;  // by rank
  };
  for (const auto& [vocab_size, rows] :
       {Case{63, {32, 31}}, Case{65, {17, 17, 17, 14}}, Case{67, {23, 23, 21}}, Case{64, {16, 16, 16, 16}}}) {
    const int tp = static_cast<int>(rows.size());
    ModelConfig config = config_of(tp == 3 ? 6 : 4, tp == 3 ? 3 : 2);
    config.vocab_size = vocab_size;
    config.tied_embeddings = false;
    EXPECT_NO_THROW(check_layout({1, tp}, config, Use::kTraining, "here"));
    int64_t first = 0;
    for (int rank = 0; rank < tp; ++rank) {
      for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
        const ParameterTable table = parameter_table(config, {1, tp}, rank);
        EXPECT_EQ(entry(table, name).box.begin[0], first) << name;
        EXPECT_EQ(entry(table, name).box.extent(0), rows[static_cast<size_t>(rank)]) << name;
      }
      EXPECT_EQ(first, rank * vocab_shard_rows(config, tp));
      first += rows[static_cast<size_t>(rank)];
    }
  }
  ModelConfig small = config_of(4, 2);
  small.vocab_size = 9;  // 3, 3, 3 and nothing
  EXPECT_THROW(check_layout({1, 4}, small, Use::kTraining, "here"), UserError);
  EXPECT_NO_THROW(check_layout({1, 2}, small, Use::kTraining, "here"));
}

TEST(Layout, FewerKvHeadsThanRanksAreReplicatedInGroups) {
  const ModelConfig config = config_of(8, 2);
  const int64_t D = config.head_dim;
  for (int rank = 0; rank < 4; ++rank) {
    const ParameterTable table = parameter_table(config, {1, 4}, rank);
    const ParameterEntry &k = entry(table, "model.layers.0.self_attn.k_proj.weight"), &q = entry(table, "model.layers.0.self_attn.q_proj.weight");
    EXPECT_EQ(k.box.begin[0], rank / 2 * D);
    EXPECT_EQ(k.box.extent(0), D);
    EXPECT_EQ(k.replicas, 2);
    // The query heads of a rank are those whose kv head it holds.
    EXPECT_EQ(q.box.begin[0] / D / (8 / 2), k.box.begin[0] / D);
    EXPECT_EQ(q.replicas, 1);
    EXPECT_EQ(entry(table, "model.layers.1.self_attn.v_proj.bias").box.begin[0], rank / 2 * D);
    EXPECT_EQ(entry(table, "model.norm.weight").replicas, 4);
  }
  EXPECT_EQ(local_kv_heads(config, 4), 1);
  EXPECT_EQ(local_kv_heads(config, 1), 2);
}

TEST(Layout, BoxesOfAllRanksCoverEachParameterAsOftenAsItIsReplicated) {
  for (int64_t kv_heads : {1, 2, 4})
    for (int tp : {1, 2, 4}) {
      ModelConfig config = config_of(4, kv_heads);
      config.vocab_size = 61;
      std::map<std::string, at::Tensor> covered;
      std::map<std::string, int> replicas;
      for (int rank = 0; rank < tp; ++rank)
        for (const ParameterEntry& e : parameter_table(config, {1, tp}, rank).entries) {
          at::Tensor& count = covered[e.parameter.name];
          if (!count.defined()) count = at::zeros(e.parameter.shape, at::kInt);
          at::Tensor part = count;
          for (size_t d = 0; d < e.box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), e.box.begin[d], e.box.extent(d));
          part.add_(1);
          replicas[e.parameter.name] = e.replicas;
        }
      for (const auto& [name, count] : covered) {
        EXPECT_EQ(count.min().item<int>(), replicas[name]) << name << ", tp " << tp << ", kv heads " << kv_heads;
        EXPECT_EQ(count.max().item<int>(), replicas[name]) << name;
      }
    }
}

TEST(ParameterTable, FusedTensorsLieSideBySideAndEverythingStartsOnALine) {
  const ParameterTable table = parameter_table(config_of(4, 2), {2, 2}, 3);
  EXPECT_EQ(table.num_elements % 32, 0);
  int64_t end = 0;
  for (const ParameterEntry& e : table.entries) {
    EXPECT_GE(e.offset, end) << e.parameter.name;
    EXPECT_LT(e.offset, end + 16) << e.parameter.name;
    end = e.offset + e.num_elements;
  }
  EXPECT_LE(end, table.num_elements);
  at::Tensor flat = at::arange(table.num_elements, at::kFloat);
  const ModelParameters p = make_parameters(table, flat, at::Tensor());
  EXPECT_EQ(p.layers[0].qkv.value.size(0), (2 + 2 * 1) * 8);
  const at::Tensor k = table.view(flat, entry(table, "model.layers.0.self_attn.k_proj.weight"));
  EXPECT_TRUE(at::equal(p.layers[0].qkv.value.narrow(0, 16, 8), k));
  EXPECT_EQ(p.head.value.data_ptr(), p.embedding.value.data_ptr());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p.layers[1].down.value.data_ptr()) % 64, reinterpret_cast<uintptr_t>(flat.data_ptr()) % 64);
}

TEST(ParameterTable, RandomValuesDoNotDependOnTheLayout) {
  ModelConfig config = config_of(4, 2);
  config.vocab_size = 61;
  const ParameterTable whole = parameter_table(config, {}, 0);
  at::Tensor all = at::zeros({whole.num_elements}, at::kFloat);
  initialize_parameters(whole, all, 5, 0.1);
  for (int rank = 0; rank < 4; ++rank) {
    const ParameterTable table = parameter_table(config, {1, 4}, rank);
    at::Tensor mine = at::zeros({table.num_elements}, at::kFloat);
    initialize_parameters(table, mine, 5, 0.1);
    for (const ParameterEntry& e : table.entries) {
      at::Tensor part = whole.view(all, entry(whole, e.parameter.name));
      for (size_t d = 0; d < e.box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), e.box.begin[d], e.box.extent(d));
      EXPECT_TRUE(at::equal(table.view(mine, e), part)) << e.parameter.name;
    }
  }
}

}  // namespace
}  // namespace tandem::model
