// SPDX-License-Identifier: Apache-2.0
// The engine under layouts of several ranks against one rank: the same greedy tokens and routes, whoever holds the experts. And the
// products of experts that other ranks hold, forward and backward.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <mutex>

#include "../tiny_model.h"
#include "tandem/base/check.h"
#include "tandem/device/process.h"
#include "tandem/model/op/expert/experts.h"
#include "tandem/rollout/group/group_assembly.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kPrompts = 9;

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<int16_t> routes;
};

GroupRequest request_of(int64_t prompt, double temperature) {
  GroupRequest r;
  r.group.id = data::GroupId{prompt};
  for (int64_t i = 0; i < 3 + 5 * prompt; ++i) r.group.prompt.ids.push_back(static_cast<int32_t>((7 * prompt + 5 * i + 3) % 60 + 2));
  r.first_sample = prompt;
  r.sampling.temperature = temperature;
  r.sampling.max_new_tokens = 4 + prompt * 3 % 17;
  r.record_routes = true;
  return r;
}

// Prompts go to replica 0, but for every third, so that replicas have different work and end at different steps.
std::vector<Answer> generate(const model::Layout& layout, const model::ModelConfig& config, double temperature = 0) {
  std::vector<Answer> answers(kPrompts);
  std::mutex mutex;
  comm::run_local(layout.world(), 60, [&](comm::Group& world) {
    device::set_compute_threads(1);
    comm::Mesh mesh(world, model::mesh_sizes(layout));
    device::Arena arena("device", 0, test::device_under_test(world.rank()));
    const model::kernel::Kernels kernels(test::backend_under_test(arena.device()), at::kFloat, model::kernel::GemmChoice{}, arena.device());
    const model::ParameterTable table = model::parameter_table(config, layout, world.rank());
    const model::Decoder decoder(config, kernels, model::place_in(layout, mesh));
    at::Tensor values = arena.allocate("weights", {table.num_elements}, at::kFloat);
    model::initialize_parameters(table, values, 9, 0.3);
    Options options;
    options.prefill_tokens = 16;
    options.kv_block_tokens = 16;
    options.kv_cache_mib = 16;
    Engine engine(options, {decoder, arena, config.vocab_size, 96});
    engine.switch_weights(model::make_parameters(table, values, at::Tensor()), data::PolicyVersion{0});
    GroupAssembly groups(engine);
    for (int64_t p = 0; p < kPrompts; ++p)
      if ((p % 3 == 0 ? p / 3 % layout.dp : 0) == layout.dp_rank(world.rank())) groups.admit(request_of(p, temperature));
    while (engine.must_step()) engine.step();
    std::lock_guard lock(mutex);
    for (const data::Group& group : groups.finished()) {
      const data::Sample& s = group.samples.at(0);
      Answer& answer = answers.at(static_cast<size_t>(value(group.id)));
      EXPECT_TRUE(answer.ids.empty() || answer.ids == s.ids) << "tensor-parallel ranks draw different tokens";
      answer = {s.ids, s.logprobs, s.routes};
    }
  });
  return answers;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want, const std::string& layout) {
  for (size_t p = 0; p < want.size(); ++p) {
    const std::string name = join_text(layout, ", prompt ", p);
    EXPECT_EQ(got[p].ids, want[p].ids) << name;
    EXPECT_EQ(got[p].routes, want[p].routes) << name;
    ASSERT_EQ(got[p].logprobs.size(), want[p].logprobs.size()) << name;
    for (size_t t = 0; t < want[p].logprobs.size(); ++t) EXPECT_NEAR(got[p].logprobs[t], want[p].logprobs[t], 1e-5) << name;
  }
}

TEST(RolloutLayout, DrawsTheTokensOfOneRankWhoeverHoldsTheExperts) {
  for (const char* family : {"qwen3_moe", "deepseek_v3"}) {
    const model::ModelConfig config = test::experts_config(family);
    const std::vector<Answer> want = generate({}, config);
    for (const char* text : {"tp2", "dp2", "dp2,ep2", "tp2,ep2", "dp4,ep4", "dp4,ep2", "dp2,tp2,ep4", "dp2,tp2,ep2", "dp2,tp2,ep2,etp2",
                             "tp4,ep2,etp2", "dp3,ep3", "dp5,ep5"})
      expect_same(generate(model::parse_layout(text, "layout"), config), want, join_text(family, ", ", text));
  }
}

// Greedy, and drawn by the same random numbers.
TEST(RolloutLayout, DrawsTheTokensOfOneRankWhereTpDoesNotDivideTheVocabulary) {
  for (const bool tied : {true, false})
    for (const double temperature : {0.0, 1.0}) {
      model::ModelConfig config = test::config_of("qwen2", 2);
      config.vocab_size = 67;
      config.tied_embeddings = tied;
      const std::vector<Answer> want = generate({}, config, temperature);
      for (const char* text : {"tp2", "tp4", "dp2,tp2", "tp2,pp2"})
        expect_same(generate(model::parse_layout(text, "layout"), config, temperature), want, join_text("67 ids, ", text));
      config.num_heads = 6, config.num_kv_heads = 3;
      expect_same(generate({1, 3}, config, temperature), generate({}, config, temperature), "67 ids, tp3");
    }
}

// Forward and backward of experts over T tokens: what a rank with all of both has.
struct Products {
  at::Tensor out_TH, d_x_TH, d_router_EH, d_gate_up, d_down;
};

constexpr int64_t kTokens = 12, kHidden = 16, kExperts = 5, kWidth = 8, kChoices = 2;

at::Tensor random(const std::string& name, std::vector<int64_t> shape) {
  RandomStream stream = model::stream_of(name, 4);
  at::Tensor t = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = static_cast<float>(stream.normal());
  return t;
}

Products run(const model::op::ExpertPlace& place, const at::Tensor& x, const at::Tensor& d_out) {
  const model::kernel::Kernels kernels(test::backend_under_test(at::kCPU), at::kFloat, model::kernel::GemmChoice{});
  const int64_t first = place.bounds[static_cast<size_t>(place.index)], held = place.num_held();
  const auto parameter = [](const at::Tensor& value) {
    model::op::Parameter p;
    p.value = value;
    p.grad = at::zeros_like(value);
    return p;
  };
  const model::op::Router router{parameter(random("router", {kExperts, kHidden})), {}, {kExperts, kChoices, 1, 1, false, true}};
  const model::op::ExpertWeights weights{
      parameter(random("gate_up", {kExperts, 2 * kWidth * kHidden}).narrow(0, first, held).reshape({held * 2 * kWidth, kHidden}).clone()),
      parameter(random("down", {kExperts, kHidden * kWidth}).narrow(0, first, held).reshape({held * kHidden, kWidth}).clone()), place};
  const at::Tensor input = x.clone().requires_grad_(true);
  const at::Tensor out = model::op::experts(kernels, input, model::op::route(kernels, input, router, {}), weights);
  out.backward(d_out);
  return {out.detach(), input.grad(), router.weight_EH.grad, weights.gate_up.grad, weights.down.grad};
}

TEST(RolloutLayout, ExpertsOfOtherRanksGiveTheirSumsAndGradients) {
  const at::Tensor x = random("x", {kTokens, kHidden}), d_out = random("d_out", {kTokens, kHidden});
  const Products want = run({{0, kExperts}}, x, d_out);
  const auto near = [](const at::Tensor& got, const at::Tensor& expected, const char* what) {
    EXPECT_LE((got - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>()) << what;
  };
  // Tokens by rank: uneven, one rank without any.
  const std::vector<int64_t> bounds = {0, 7, 7, kTokens};
  at::Tensor d_router = at::zeros_like(want.d_router_EH);
  std::mutex mutex;
  comm::run_local(3, 60, [&](comm::Group& world) {
    device::set_compute_threads(1);
    const auto r = static_cast<size_t>(world.rank());
    const int64_t begin = bounds[r], count = bounds[r + 1] - begin;
    const model::op::ExpertPlace place{{0, 2, 4, kExperts}, world.rank(), &world};
    const int64_t first = place.bounds[r], held = place.num_held();
    const Products got = run(place, x.narrow(0, begin, count).contiguous(), d_out.narrow(0, begin, count).contiguous());
    std::lock_guard lock(mutex);
    if (count > 0) near(got.out_TH, want.out_TH.narrow(0, begin, count), "output");
    if (count > 0) near(got.d_x_TH, want.d_x_TH.narrow(0, begin, count), "gradient of the tokens");
    near(got.d_gate_up, want.d_gate_up.narrow(0, first * 2 * kWidth, held * 2 * kWidth), "gradient of gate and up");
    near(got.d_down, want.d_down.narrow(0, first * kHidden, held * kHidden), "gradient of down");
    d_router += got.d_router_EH;
  });
  near(d_router, want.d_router_EH, "gradient of the router");
}

}  // namespace
}  // namespace tandem::rollout
