// SPDX-License-Identifier: Apache-2.0
// The routers' losses against libtorch's own differentiation of their formulas, and the update of the correction bias.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "one_rank.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/model/op/expert/experts.h"
#include "tandem/train/router_load.h"

namespace tandem::train {
namespace {

using model::op::Router;
using model::op::RouterLoss;

constexpr int64_t kTokens = 9, kHidden = 8, kExperts = 6, kChoices = 2;

at::Tensor random(const std::string& name, std::vector<int64_t> shape) {
  RandomStream stream = model::stream_of(name, 3);
  at::Tensor t = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = static_cast<float>(stream.normal());
  return t;
}

void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * want.abs().max().item<double>()) << what;
}

TEST(RouterLoss, GradientsAreThoseOfTheFormulas) {
  const at::Tensor x0 = random("x", {kTokens, kHidden}), w0 = random("w", {kExperts, kHidden}), load = random("load", {kExperts}).abs();
  at::Tensor counted = at::ones({kTokens}, at::kBool);
  counted[2] = counted[5] = false;
  for (const bool sigmoid : {false, true})
    for (const auto& [z, balance] : {std::pair{0.3, 0.0}, std::pair{0.0, 0.7}, std::pair{0.3, 0.7}}) {
      const std::string name = join_text(sigmoid ? "sigmoid" : "softmax", ", z ", z, ", balance ", balance);
      at::Tensor x = x0.clone().requires_grad_(true), w = w0.clone().requires_grad_(true);
      const at::Tensor logits = at::matmul(x, w.t()).index({counted});
      const at::Tensor scores = at::sigmoid(logits), shares = sigmoid ? scores / scores.sum(1, true) : at::softmax(logits, 1);
      const at::Tensor z_sum = logits.logsumexp(1).square().sum(), balance_sum = (shares * load).sum();
      (z * z_sum + balance * balance_sum).backward();

      double sums[2] = {0, 0};
      const model::kernel::Kernels kernels(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
      Router router;
      router.weight_EH.value = w0;
      router.weight_EH.grad = at::zeros_like(w0);
      router.shape = {kExperts, kChoices, 1, 1, sigmoid, true};
      router.loss = {{static_cast<float>(z), static_cast<float>(balance), load, counted}, &sums[0], &sums[1]};
      const at::Tensor input = x0.clone().requires_grad_(true);
      const auto routing = model::op::route(kernels, input, router, {});
      routing.weights_Tk.backward(at::zeros_like(routing.weights_Tk));  // the losses alone
      expect_near(input.grad(), x.grad(), name + ", tokens");
      expect_near(router.weight_EH.grad, w.grad(), name + ", weights");
      EXPECT_NEAR(sums[0], z_sum.item<double>(), 1e-4 * z_sum.item<double>()) << name;
      EXPECT_NEAR(sums[1], balance > 0 ? balance_sum.item<double>() : 0.0, 1e-4 * balance_sum.item<double>()) << name;
    }
}

struct RouterCase {
  test::TinyModel model;
  Trainer trainer;
  std::vector<int32_t> tokens;
  std::vector<Row> rows;

  RouterCase(const Options& options, const std::string& family, c10::ScalarType dtype)
      : model(test::experts_config(family), dtype, true),  // parity: else each measures which library is faster today
        trainer(options, {model.table, model.decoder, model.values, test::ranks_alone(model), model.arena}) {
    trainer.start();
    for (int i = 0; i < 40; ++i) tokens.push_back(5 * i % 61 + 2);
    for (size_t begin : {0, 20}) {
      Row row;
      row.prompt = std::span(tokens).subspan(begin, 4);
      row.response = std::span(tokens).subspan(begin + 4, 16);
      rows.push_back(row);
    }
  }
  at::Tensor bias(size_t layer) const { return model.parameters.layers[layer].router_bias.value; }
};

TEST(RouterLoss, ReportsWhatTheCoefficientsMultiply) {
  Options o;
  o.router_balance_coef = 0.1;
  RouterCase c(o, "qwen3_moe", at::kFloat);
  const StepReport report = c.trainer.supervised_step(c.rows, 1e-3);
  ASSERT_TRUE(report.router_balance && report.router_load_max && report.router_z);
  EXPECT_GT(*report.router_load_max, 1.0);
  EXPECT_LE(*report.router_load_max, 3.0) << "two of six experts take every token";
  EXPECT_GT(*report.router_balance, 0.5);
  EXPECT_LT(*report.router_balance, *report.router_load_max);
  RouterCase dense({}, "qwen3_moe", at::kFloat);
  EXPECT_FALSE(dense.trainer.supervised_step(dense.rows, 1e-3).router_balance);
}

TEST(CorrectionBias, MovesAgainstTheLoadWithoutAGradient) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Options o;
    o.router_bias_rate = 1e-3;
    RouterCase c(o, "deepseek_v3", dtype);
    EXPECT_EQ(c.bias(1).scalar_type(), at::kFloat) << "kept in fp32";
    const at::Tensor before = c.bias(1).clone();
    (void)c.trainer.supervised_step(c.rows, 1e-3);
    const at::Tensor moved = c.bias(1) - before;
    EXPECT_TRUE(at::allclose(moved.abs(), at::full_like(moved, 1e-3), 1e-3)) << moved;
    EXPECT_GT(moved.max().item<double>(), 0);
    EXPECT_LT(moved.min().item<double>(), 0);

    RouterCase again(o, "deepseek_v3", dtype);
    again.model.values.copy_(c.model.values);  // as a checkpoint has them
    test::copy_state(c.trainer, again.trainer);
    EXPECT_TRUE(at::equal(again.bias(1), c.bias(1)));
    (void)c.trainer.supervised_step(c.rows, 1e-3);
    (void)again.trainer.supervised_step(c.rows, 1e-3);
    EXPECT_TRUE(at::equal(again.bias(1), c.bias(1)));
    EXPECT_TRUE(at::equal(again.model.values.view(at::kByte), c.model.values.view(at::kByte)));
  }
}

TEST(CorrectionBias, EvensTheLoad) {
  Options o;
  o.router_bias_rate = 0.02;
  RouterCase c(o, "deepseek_v3", at::kFloat);
  const double before = *c.trainer.supervised_step(c.rows, 0).router_load_max;
  double after = before;
  for (int i = 0; i < 60; ++i) after = *c.trainer.supervised_step(c.rows, 0).router_load_max;
  EXPECT_LT(after, before - 0.2) << "with a learning rate of 0";
}

TEST(RouterOptions, OfAModelThatHasNoRouterAreErrors) {
  for (double Options::*option : {&Options::router_balance_coef, &Options::router_z_coef, &Options::router_bias_rate}) {
    Options o;
    o.*option = 0.1;
    test::TinyModel model;
    EXPECT_THROW(Trainer(o, {model.table, model.decoder, model.values, test::ranks_alone(model), model.arena}), UserError);
  }
  Options o;
  o.router_bias_rate = 0.1;
  EXPECT_NO_THROW(check_options(o, test::experts_config("deepseek_v3"), {}, "train"));
  EXPECT_THROW(check_options(o, test::experts_config("qwen3_moe"), {}, "train"), UserError);
  EXPECT_THROW(check_options(o, test::experts_config("deepseek_v3"), {4, 8}, "train"), UserError) << "an adapter cannot carry it";
}

}  // namespace
}  // namespace tandem::train
