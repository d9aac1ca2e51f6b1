// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <string>

#include "backends.h"
#include "random_tensor.h"
#include "tandem/model/kernel/cpu/cpu.h"
#include "tandem/model/op/function.h"

namespace tandem::model::op {

using namespace kernel;
using kernel::cpu::all_rows, kernel::cpu::combine, kernel::cpu::LogitStats, kernel::cpu::LogSoftmax, kernel::cpu::rows, kernel::cpu::Rows;

namespace {

using test::random_tensor;

at::Tensor random_targets(int64_t rows, int64_t vocabulary) {
  at::Tensor t = at::empty({rows}, at::kLong);
  RandomStream random(8, 8);
  for (int64_t i = 0; i < rows; ++i) t.data_ptr<int64_t>()[i] = random.below(vocabulary);
  return t;
}

void check_head(c10::ScalarType dtype, double temperature) {
  const int64_t R = 150, H = 24, V = 4099;  // 4099 columns: chunks of about a thousand rows would hold all; see the next test for many
  const Kernels kernels(kernel::cpu::backend(), dtype, false);
  const double bound = dtype == at::kFloat ? 2e-5 : 0.03;
  const at::Tensor hidden = random_tensor({R, H}, 1, dtype), weight = random_tensor({V, H}, 2, dtype, 0.4), targets = random_targets(R, V);
  const at::Tensor d = random_tensor({R}, 3), e = random_tensor({R}, 4);
  const at::Tensor hd = hidden.to(at::kDouble).requires_grad_(true), wd = weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor all = at::log_softmax(at::matmul(hd, wd.t()) / temperature, -1);
  const at::Tensor want = all.gather(1, targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(all.exp() * all).sum(-1);
  const auto worst = [](const at::Tensor& got, const at::Tensor& reference) {
    return (got.to(at::kDouble) - reference).abs().max().item<double>() / reference.abs().max().item<double>();
  };
  for (const auto& [of_logprobs, of_entropy] : {std::pair(true, false), {false, true}, {true, true}}) {
    SCOPED_TRACE(testing::Message() << "a loss of log-probabilities: " << of_logprobs << ", of the entropy: " << of_entropy);
    const at::Tensor leaf = hidden.clone().requires_grad_(true);
    Parameter p;
    p.value = weight;
    p.grad = at::ones({V, H}, at::kFloat);
    const HeadOutput out = head_logprobs(kernels, {leaf, targets, 0, temperature, nullptr}, p);
    EXPECT_LE((out.logprobs_R.detach().to(at::kDouble) - want.detach()).abs().max().item<double>(), bound * 3);
    EXPECT_LE((out.entropy_R.detach().to(at::kDouble) - entropy.detach()).abs().max().item<double>(), bound * 3);
    const auto loss = [&, logprobs = of_logprobs, entropies = of_entropy](const at::Tensor& l, const at::Tensor& h) {
      const at::Tensor first = (l * d).sum(), second = (h * e).sum();
      return !entropies ? first : logprobs ? first + second : second;
    };
    loss(out.logprobs_R, out.entropy_R).backward();
    const auto grads = torch::autograd::grad({loss(want, entropy)}, {hd, wd}, {}, true);
    EXPECT_LE(worst(leaf.grad(), grads[0]), bound);
    EXPECT_LE(worst(p.grad - 1, grads[1]), bound);
  }
}

TEST(Head, LogprobsEntropyAndGradientsAreThoseOfTheFormulaInFloat32) {
  check_head(at::kFloat, 1.0);
  check_head(at::kFloat, 0.7);
}

TEST(Head, LogprobsEntropyAndGradientsAreThoseOfTheFormulaInBfloat16) {
  check_head(at::kBFloat16, 1.0);
  check_head(at::kBFloat16, 0.7);
}

int64_t status_kib(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key, 0) == 0) return std::stoll(line.substr(key.size() + 1));
  return -1;
}

TEST(Head, MemoryDoesNotGrowWithTheRowsOfAQwenVocabulary) {
  const int64_t R = 1000, H = 8, V = 151936;
  const Kernels kernels(kernel::cpu::backend(), at::kFloat, true);
  const at::Tensor hidden = random_tensor({R, H}, 1).requires_grad_(true), targets = random_targets(R, V);
  Parameter p;
  p.value = random_tensor({V, H}, 2);
  p.grad = at::zeros({V, H}, at::kFloat);
  std::ofstream("/proc/self/clear_refs") << "5";  // a new peak from here
  const int64_t before = status_kib("VmRSS:");
  if (status_kib("VmHWM:") > before + 50 * 1024) GTEST_SKIP() << "this kernel does not reset the peak of memory";
  head_logprobs(kernels, {hidden, targets, 0, 1.0, nullptr}, p).logprobs_R.sum().backward();
  const double grown_mib = static_cast<double>(status_kib("VmHWM:") - before) / 1024;
  EXPECT_LT(grown_mib, 120.0) << "the logits of all rows take " << static_cast<double>(R) * V * 4 / (1 << 20) << " MiB";
  EXPECT_TRUE(std::isfinite(hidden.grad().sum().item<double>()));
}

TEST(Head, ShardsOfTheVocabularyCombineToTheWhole) {
  const auto logits = random_tensor({1, 96}, 5, at::kFloat, 3.0);
  const float* x = logits.data_ptr<float>();
  const LogitStats whole[] = {rows().fp.logit_stats(x, 96, 1.0f)};
  const LogitStats parts[] = {rows().fp.logit_stats(x, 32, 1.0f), rows().fp.logit_stats(x + 32, 32, 1.0f), rows().fp.logit_stats(x + 64, 32, 1.0f)};
  const LogSoftmax one = combine(whole, 1.0f), many = combine(parts, 1.0f);
  EXPECT_NEAR(one.of(1.5f), many.of(1.5f), 1e-5);
  EXPECT_NEAR(one.entropy, many.entropy, 1e-5);
  EXPECT_NEAR(-one.of(0), at::logsumexp(logits, std::vector<int64_t>{1}).item<float>(), 1e-5);
}

TEST(Head, StatisticsOfShardsCombineInEveryBackend) {
  const at::Tensor logits = random_tensor({5, 96}, 5, at::kFloat, 3.0), wide = logits.to(at::kDouble) / 0.7;
  const at::Tensor targets = at::tensor({3, 40, 95, 0, 64}, at::kLong), p = wide.softmax(1), log_p = wide.log_softmax(1);
  const at::Tensor want = log_p.gather(1, targets.unsqueeze(1)).squeeze(1), entropy = -(p * log_p).sum(1);
  for (const Backend* backend : test::backends())
    for (const std::vector<int64_t>& widths : {std::vector<int64_t>{96}, {32, 32, 32}}) {
      at::Tensor stats = at::empty({std::ssize(widths), 5, 4});
      int64_t begin = 0;
      for (size_t s = 0; s < widths.size(); begin += widths[s++]) {
        at::Tensor part = stats[static_cast<int64_t>(s)];
        backend->logit.stats(logits.narrow(1, begin, widths[s]).contiguous(), targets - begin, 1 / 0.7f, part);
      }
      const Softmax got = backend->logit.combine(stats, 1 / 0.7f);
      EXPECT_LT((got.logprobs_R - want).abs().max().item<double>(), 2e-6) << backend->name;
      EXPECT_LT((got.softmax_R3.select(1, 2) - entropy).abs().max().item<double>(), 4e-6) << backend->name;
    }
}

TEST(Head, ANearlyCertainTokenKeepsItsRelativePrecision) {
  for (const Backend* backend : test::backends()) {
    const at::Tensor logits = at::tensor({18.0f, 30.0f, 17.5f, -50.0f}).unsqueeze(0), target = at::tensor({1}, at::kLong);
    at::Tensor stats = at::empty({1, 4}), copy = logits.clone();
    backend->logit.stats(logits, target, 1.0f, stats);
    const Softmax softmax = backend->logit.combine(stats.unsqueeze(0), 1.0f);
    const double rest = std::exp(-12.0) + std::exp(-12.5);
    EXPECT_NEAR(softmax.logprobs_R.item<double>() / -std::log1p(rest), 1.0, 2e-6) << backend->name;
    const at::Tensor d = backend->logit.grad(copy, {softmax, target, at::ones({1}), {}, 1.0f, at::kFloat});
    EXPECT_NEAR(d[0][1].item<double>() / (rest / (1 + rest)), 1.0, 2e-6) << backend->name;
  }
  for (float gap : {8.0f, 12.0f, 16.0f}) {
    const float logits[] = {30.0f - gap, 30.0f, 29.5f - gap, -50.0f};
    const double rest = std::exp(-static_cast<double>(gap)) + std::exp(-0.5 - gap), inv = 1 / 0.7;
    const double at_inv = std::exp(-gap * inv) + std::exp((-0.5 - gap) * inv);
    for (const Rows* table : all_rows()) {
      for (double t : {1.0, inv}) {
        const float scale = static_cast<float>(t);
        const LogitStats whole[] = {table->fp.logit_stats(logits, 4, scale)};
        const LogitStats parts[] = {table->fp.logit_stats(logits, 1, scale), table->fp.logit_stats(logits + 1, 3, scale)};
        const double sum = t == 1.0 ? rest : at_inv, want = -std::log1p(sum);
        EXPECT_NEAR(combine(whole, scale).of(30.0f) / want, 1.0, 2e-6) << table->isa;
        EXPECT_NEAR(combine(parts, scale).of(30.0f) / want, 1.0, 2e-6) << table->isa;
        float d[4];
        table->f32.logit_grad(logits, 4, combine(whole, scale), {1.0f, 0.0f, 1}, d);
        EXPECT_NEAR(d[1] / (sum / (1 + sum)), 1.0, 2e-6) << table->isa;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::model::op
