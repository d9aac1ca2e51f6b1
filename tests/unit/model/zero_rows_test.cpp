// SPDX-License-Identifier: Apache-2.0
// A rank may have no token in a pass. Every step of the decoder then takes none, gives none, and leaves the gradients of its weights
// as they are.

#include <gtest/gtest.h>

#include <list>

#include "../../tiny_model.h"
#include "backends.h"
#include "random_tensor.h"
#include "tandem/model/op/expert/experts.h"
#include "tandem/model/op/heads.h"

namespace tandem::model::op {

using namespace kernel;

namespace {

using test::random_tensor;

constexpr int64_t kWidth = 24;
const AttentionShape kShape{4, 2, 8};

class ZeroRows : public testing::TestWithParam<c10::ScalarType> {
 protected:
  // A library that is asked for an impossible product says so there and goes on.
  void SetUp() override { testing::internal::CaptureStdout(); }
  void TearDown() override { EXPECT_EQ(testing::internal::GetCapturedStdout(), ""); }

  static at::Tensor none(int64_t width) { return at::empty({0, width}, GetParam()).requires_grad_(true); }
  static at::Tensor no_tokens() { return at::empty({0}, at::kLong); }

  // Its gradient is 1 everywhere, so that it shows if anything is written or added.
  Parameter& weight(const std::vector<int64_t>& shape) {
    Parameter p;
    p.value = random_tensor(shape, 1, GetParam());
    p.grad = at::ones(shape, at::kFloat);
    weights_.push_back(std::move(p));
    return weights_.back();
  }
  void with_adapter(Parameter& w) {
    const int64_t rows = w.value.size(0), columns = w.value.size(1), rank = 3;
    const at::Tensor a = random_tensor({rank, columns}, 2), b = random_tensor({rows, rank}, 3);
    w.adapters.push_back({0, a, b, at::ones_like(a), at::ones_like(b), 0.5});
    w.a_RK = a.to(GetParam()), w.b_NR = b.mul(0.5).to(GetParam());
  }

  // Runs backward from `out` to `in`.
  void check(const at::Tensor& out, const at::Tensor& in, std::vector<int64_t> shape) {
    EXPECT_EQ(out.sizes(), at::IntArrayRef(shape));
    ASSERT_TRUE(out.requires_grad());
    out.sum().backward();
    EXPECT_EQ(in.grad().sizes(), in.sizes());
    for (const Parameter& w : weights_) {
      EXPECT_TRUE(w.grad.eq(1).all().item<bool>());
      for (const Adapter& a : w.adapters) EXPECT_TRUE(a.a_grad.eq(1).all().item<bool>() && a.b_grad.eq(1).all().item<bool>());
    }
  }

  std::list<Parameter> weights_;
};

// Whatever library a product goes to.
std::vector<Kernels> all_kernels(c10::ScalarType dtype) {
  std::vector<Kernels> all = {Kernels(kernel::cpu::backend(), dtype, true)};
  if (dtype == at::kFloat) all.push_back(Kernels(kernel::cpu::backend(), dtype, GemmChoice{}));
  for (const GemmChoice& choice : {GemmChoice{Library::kOneDnn, Library::kOneDnn, Library::kOneDnn},
                                   GemmChoice{Library::kOneDnn, Library::kOneDnn, Library::kBlas,
                                              dtype == at::kBFloat16 ? Logits::kBlas : Logits::kCopies},
                                   GemmChoice{Library::kOneDnn, Library::kOneDnn, Library::kBrgemm, Logits::kBrgemm}})
    if (kernel::cpu::backend().product.can_compute(choice, dtype)) all.push_back(Kernels(kernel::cpu::backend(), dtype, choice));
  return all;
}

TEST_P(ZeroRows, GoThroughProducts) {
  for (const Kernels& kernels : all_kernels(GetParam())) {
    SCOPED_TRACE(kernels.description());
    const at::Tensor x = none(kWidth);
    Parameter& w = weight({16, kWidth});
    check(linear(kernels, x, w), x, {0, 16});
    with_adapter(w);
    check(linear(kernels, x, w), x, {0, 16});
    at::Tensor logits = at::empty({0, 16}, at::kFloat);
    kernels.forward_float(logits, x.detach(), w.value);
    const at::Tensor heads = none(4 * 6);
    check(head_linear(kernels, heads, weight({4 * 10, 6}), {4, 10, 2, 5, true}), heads, {0, 4 * 5});
    check(head_linear(kernels, heads, weight({4 * 10, 7}), {4, 10, 2, 6, false}), heads, {0, 4 * 7});
  }
  const ProductKernels& product = kernel::cpu::backend().product;
  const PackedWeight packed = product.pack({}, random_tensor({16, kWidth}, 1, GetParam()));
  if (!packed.defined()) return;  // nothing can pack this dtype here
  EXPECT_EQ(product.packed_product(none(kWidth).detach(), packed).sizes(), (std::vector<int64_t>{0, 16}));
}

TEST_P(ZeroRows, GoThroughTheStepsOfALayer) {
  for (const Backend* backend : test::backends())
    for (bool parity : {false, true}) {
      const Kernels k = test::plain(*backend, GetParam(), parity);
      SCOPED_TRACE(backend->name);
      const at::Tensor x = none(kWidth), qkv = none(kShape.width()), gate_up = none(2 * kWidth);
      check(add_rms_norm(k, x, {}, weight({kWidth}), 1e-6).second, x, {0, kWidth});
      check(add_rms_norm(k, none(kWidth), x, weight({kWidth}), 1e-6).second, x, {0, kWidth});
      check(head_norm(k, qkv, weight({2 * kShape.head_dim}), 1e-6, kShape), qkv, {0, kShape.width()});
      check(rope(k, qkv, weight({kShape.width()}), {at::zeros({1, kShape.head_dim}), no_tokens(), kShape}), qkv, {0, kShape.width()});
      check(swiglu(k, gate_up), gate_up, {0, kWidth});
      check(select_rows(k, x, no_tokens()), x, {0, kWidth});
      check(attention(k, qkv, test::plan_of(k, {}, 0), kShape), qkv, {0, kShape.q_width()});
      check(attention(k, qkv, test::plan_of(k, {{0, 0, {0}}}, 0), kShape), qkv, {0, kShape.q_width()});
      const auto layer = [&](const at::Tensor& a, const at::Tensor& b) { return add_rms_norm(k, a, b, weights_.front(), 1e-6); };
      check(recompute(layer, x, none(kWidth)).second, x, {0, kWidth});
    }
}

TEST_P(ZeroRows, GoThroughTheEnds) {
  const Kernels first = all_kernels(GetParam()).front();
  const at::Tensor x = embed(first, weight({50, kWidth}), no_tokens(), 0);
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{0, kWidth}));
  x.sum().backward();
  for (const Kernels& kernels : all_kernels(GetParam())) {
    const at::Tensor hidden = none(kWidth);
    check(head_logprobs(kernels, {hidden, no_tokens(), 0, 1.0, nullptr}, weight({50, kWidth})).logprobs_R, hidden, {0});
    check(head_scores(kernels, hidden, weight({3, kWidth})), hidden, {0, 3});
  }
}

TEST_P(ZeroRows, GoThroughRoutersAndExperts) {
  constexpr int64_t kExperts = 6, kChoices = 2, kInner = 10;
  double z_sum = 0, balance_sum = 0;
  for (const Kernels& kernels : all_kernels(GetParam())) {
    const at::Tensor x = none(kWidth);
    Router router{weight({kExperts, kWidth}), {}, {kExperts, kChoices}};
    router.loss = {{0.1f, 0.1f, at::ones({kExperts}), at::empty({0}, at::kBool)}, &z_sum, &balance_sum};
    const Routing routing = route(kernels, x, router, {});
    const Parameter &gate_up = weight({kExperts * 2 * kInner, kWidth}), &down = weight({kExperts * kWidth, kInner});
    const ExpertWeights weights{gate_up, down, {{0, kExperts}}};
    check(experts(kernels, x, routing, weights), x, {0, kWidth});
  }
  EXPECT_EQ(z_sum, 0);
  EXPECT_EQ(balance_sum, 0);
}

TEST_P(ZeroRows, GoThroughWholeDecoders) {
  for (const ModelConfig& config : {test::config_of("qwen2", 2), test::config_of("qwen3", 2), test::experts_config("qwen3_moe"),
                                    test::experts_config("deepseek_v3")})
    for (bool parity : {false, true}) {
      SCOPED_TRACE(config.family + (parity ? ", parity" : ""));
      const test::TinyModel tiny(config, GetParam(), parity);
      const at::Tensor grads = at::ones({tiny.table.num_elements}, at::kFloat);
      const ModelParameters parameters = make_parameters(tiny.table, tiny.values, grads);
      for (const at::Tensor& rows : {at::Tensor(), no_tokens()}) {
        PackedContext context(tiny.kernels, {});
        const at::Tensor hidden = tiny.decoder.forward(parameters, {no_tokens(), no_tokens(), rows, {}, {}}, context);
        tiny.decoder.logprobs(parameters, hidden, no_tokens(), 1.0).logprobs_R.sum().backward();
      }
      EXPECT_TRUE(grads.eq(1).all().item<bool>());
    }
}

INSTANTIATE_TEST_SUITE_P(OfBothDtypes, ZeroRows, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& param_info) { return c10::toString(param_info.param); });

}  // namespace
}  // namespace tandem::model::op
