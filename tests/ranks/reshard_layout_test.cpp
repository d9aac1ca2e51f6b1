// SPDX-License-Identifier: Apache-2.0
// A switch between any two layouts leaves each rank with the bits that it would have loaded, for the fewest bytes.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "../tiny_model.h"
#include "tandem/base/check.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/plan_weights.h"

namespace tandem::reshard {
namespace {

constexpr uint64_t kSeed = 5;

/// A checkpoint in float32. What is kept in fp32 whatever the dtype is no number of bfloat16.
at::Tensor initial(const model::ParameterTable& table) {
  at::Tensor values = at::zeros({table.num_elements}, at::kFloat);
  model::initialize_parameters(table, values, kSeed, 0.3);
  for (const model::ParameterEntry& e : table.entries)
    if (e.parameter.in_float()) table.view(values, e).copy_(at::arange(e.box.num_elements(), at::kFloat).mul(0.1f).add(1e-3f));
  return values;
}

/// The checkpoint as it is loaded in another dtype.
at::Tensor loaded(const model::ParameterTable& table, at::ScalarType dtype) {
  const at::Tensor checkpoint = initial(table);
  at::Tensor values = at::zeros({table.num_elements}, dtype);
  for (const model::ParameterEntry& e : table.entries) table.view(values, e).copy_(table.view(checkpoint, e));
  return values;
}

struct Dtypes {
  at::ScalarType source, target;
  at::ScalarType narrower() const { return source == at::kBFloat16 ? source : target; }
};

void expect_the_loaded_bits(const model::ModelConfig& config, const std::string& from, const std::string& to, const Dtypes& dtypes) {
  const model::Layout source = model::parse_layout(from, "from"), target = model::parse_layout(to, "to");
  SCOPED_TRACE(join_text(config.family, ", ", from, " to ", to, ", ", dtypes.source, " to ", dtypes.target));
  const at::ScalarType dtype = dtypes.narrower();
  const PlanOptions options = {.element_bytes = static_cast<int64_t>(c10::elementSize(dtype)), .bucket_bytes = 8 << 10, .ranks_per_node = 4,
                               .may_alias = dtypes.source == dtypes.target};
  const Plan plan = make_plan(table_of(config, {1, source}, {1, target}), options);
  EXPECT_EQ(plan.stats.bytes_total, plan.stats.lower_bound_bytes);
  comm::run_local(source.world(), 60, [&](comm::Group& world) {
    const int rank = world.rank();
    const model::ParameterTable before = model::parameter_table(config, source, rank), after = model::parameter_table(config, target, rank);
    const at::Tensor held = loaded(before, dtypes.source);
    const at::Tensor got = plan.alias ? held : at::zeros({after.num_elements}, dtypes.target);
    if (!plan.alias) {
      const Moved moved =
          execute(part_of(plan, rank), world, held_weights(before, held, dtype), held_weights(after, got, dtype), {dtype});
      EXPECT_EQ(moved.sent_bytes, plan.stats.sent_bytes[rank]);
      EXPECT_LE(moved.staging_peak_bytes, options.bucket_bytes);
      EXPECT_TRUE(at::equal(held, loaded(before, dtypes.source))) << "the source was written";
    }
    // From bfloat16 to float32 the checkpoint is one of bfloat16.
    const at::Tensor checkpoint = loaded(after, dtype);
    for (const model::ParameterEntry& e : after.entries)
      EXPECT_TRUE(at::equal(after.view(got, e), after.view(checkpoint, e).to(after.view(got, e).scalar_type()))) << e.parameter.name;
  });
}

// Layouts of 4 ranks: of training, and the rollout's among them without cp and vpp.
const std::vector<std::string> kDense = {"dp4", "tp4", "pp4", "tp2,pp2", "dp2,tp2", "dp2,pp2", "cp2,tp2", "dp2,pp2,vpp2"};
const std::vector<std::string> kSparse = {"dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2"};
const std::vector<std::string> kOfEight = {"dp2,tp2,pp2,ep4", "dp4,pp2,ep4", "dp8,ep8", "dp4,tp2,ep2,etp2", "tp4,pp2"};

constexpr Dtypes kDtypes[] = {{at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16},
                              {at::kBFloat16, at::kFloat}};

void expect_of_all_pairs(const model::ModelConfig& config, const std::vector<std::string>& layouts) {
  size_t number = 0;
  for (const std::string& from : layouts)
    for (const std::string& to : layouts)
      if (to.find("cp") == std::string::npos && to.find("vpp") == std::string::npos)
        expect_the_loaded_bits(config, from, to, kDtypes[number++ % std::size(kDtypes)]);
}

TEST(ReshardLayout, OfADenseModelGivesTheLoadedBits) {
  model::ModelConfig config = test::config_of("qwen2", 2);
  config.num_layers = 5;
  expect_of_all_pairs(config, kDense);
  config.vocab_size = 61;  // tp2 and tp4 do not divide it
  for (const bool tied : {true, false}) {
    config.tied_embeddings = tied;
    expect_of_all_pairs(config, kDense);
  }
}

TEST(ReshardLayout, OfASparseModelGivesTheLoadedBits) {
  for (const char* family : {"qwen3_moe", "deepseek_v3"}) {
    model::ModelConfig config = test::experts_config(family);
    config.moe.num_experts = 8, config.num_layers = 5;
    if (family == std::string("deepseek_v3")) config.vocab_size = 61;
    if (config.moe.num_groups > 0) config.moe.num_groups = 4;
    std::vector<std::string> layouts = kDense;
    layouts.insert(layouts.end(), kSparse.begin(), kSparse.end());
    expect_of_all_pairs(config, layouts);
    expect_of_all_pairs(config, kOfEight);
  }
}

// Every model with every pair of dtypes, where layouts are equal too.
TEST(ReshardLayout, OfAnyDtypesGivesTheLoadedBits) {
  for (const char* family : {"qwen2", "qwen3_moe", "deepseek_v3"}) {
    const bool is_dense = family == std::string("qwen2");
    model::ModelConfig config = is_dense ? test::config_of(family, 2) : test::experts_config(family);
    if (!is_dense) config.moe.num_experts = 8;
    if (config.moe.num_groups > 0) config.moe.num_groups = 4;
    for (const Dtypes& dtypes : kDtypes)
      for (const auto& [from, to] : {std::pair("dp2,pp2", "tp4"), std::pair("tp2,pp2", "dp4"), std::pair("tp2,dp2", "tp2,dp2")})
        expect_the_loaded_bits(config, from, to, dtypes);
  }
}

}  // namespace
}  // namespace tandem::reshard
