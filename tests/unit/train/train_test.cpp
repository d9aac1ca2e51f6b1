// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "one_rank.h"
#include "tandem/algo/algorithm.h"
#include "tandem/base/error.h"

namespace tandem::train {
namespace {

using test::TinyModel;

// Random rows of many lengths; some with advantages on both sides.
struct Rows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> behavior;
  std::vector<Row> rows;

  explicit Rows(int64_t n, uint64_t seed = 3) {
    RandomStream random(seed, 1);
    for (int64_t i = 0; i < n; ++i) {
      auto& ids = tokens.emplace_back();
      for (int64_t t = 4 + random.below(40); t > 0; --t) ids.push_back(static_cast<int32_t>(random.below(64)));
      auto& logprobs = behavior.emplace_back(ids.size());
      for (float& x : logprobs) x = static_cast<float>(-3 + random.normal());
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      Row row;
      const size_t prompt = 1 + i % 3;
      row.prompt = std::span(tokens[i]).first(prompt);
      row.response = std::span(tokens[i]).subspan(prompt);
      row.behavior = std::span(behavior[i]).first(row.response.size());
      row.advantages.assign(row.response.size(), static_cast<float>(random.normal()));
      rows.push_back(row);
    }
  }
};

struct Case {
  TinyModel model;
  Trainer trainer;

  explicit Case(const Options& options, c10::ScalarType dtype = at::kFloat, bool parity = false)
      : model(test::tiny_config(), dtype, parity),
        trainer(options, {model.table, model.decoder, model.values, test::ranks_alone(model), model.arena}) {
    trainer.start();
  }
};

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

Options options_of(int64_t micro_batch_tokens, const std::string& recompute = "none") {
  Options o;
  o.micro_batch_tokens = micro_batch_tokens;
  o.recompute = recompute;
  o.lr = 1e-3;
  return o;
}

TEST(Trainer, SplittingABatchChangesTheGradientByRoundingAlone) {
  const Rows batch(12);
  for (auto aggregation : {algo::Aggregation::kTokenMean, algo::Aggregation::kSequenceMeanTokenMean, algo::Aggregation::kSequenceMeanTokenSum}) {
    algo::Algorithm algorithm;
    algorithm.aggregation = aggregation;
    Case whole(options_of(100000));
    const StepReport want = whole.trainer.policy_step(batch.rows, algorithm, 0.8, 1e-3);
    EXPECT_GT(want.grad_norm, 0);
    for (int64_t tokens : {1, 50, 120}) {
      Case split(options_of(tokens, tokens == 50 ? "full" : "none"));
      const StepReport got = split.trainer.policy_step(batch.rows, algorithm, 0.8, 1e-3);
      EXPECT_LT(relative(split.trainer.grads(), whole.trainer.grads()), 2e-6) << tokens;
      EXPECT_NEAR(got.grad_norm / want.grad_norm, 1.0, 1e-6);
      EXPECT_NEAR(got.loss, want.loss, 1e-6);
      EXPECT_EQ(got.trained_tokens, want.trained_tokens);
      for (size_t i = 0; i < batch.rows.size(); ++i)
        for (size_t t = 0; t < want.logprobs[i].size(); ++t) EXPECT_NEAR(got.logprobs[i][t], want.logprobs[i][t], 1e-5);
    }
  }
}

TEST(Trainer, RecomputingLayersGivesTheSameGradientBitForBit) {
  const Rows batch(6);
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Case keep(options_of(8192), dtype), again(options_of(8192, "full"), dtype);
    keep.trainer.supervised_step(batch.rows, 1e-3);
    again.trainer.supervised_step(batch.rows, 1e-3);
    EXPECT_TRUE(at::equal(keep.trainer.grads(), again.trainer.grads())) << dtype;
  }
}

TEST(Trainer, TheGradientIsTheSlopeOfTheLoss) {
  const Rows batch(5);
  Case c(options_of(8192));
  const auto loss = [&] {
    double sum = 0, tokens = 0;
    for (const auto& row : score(c.model.decoder, c.model.parameters, batch.rows, 1.0, 8192))
      for (float x : row) sum -= x, ++tokens;
    return sum / tokens;
  };
  c.trainer.supervised_step(batch.rows, 0.0);
  const at::Tensor grads = c.trainer.grads().clone(), values = c.model.values.clone();
  // Along the gradient itself, where the slope is its norm.
  const double h = 1e-3, norm = grads.norm().item<double>();
  c.model.values.add_(grads, h / norm);
  const double up = loss();
  c.model.values.copy_(values).sub_(grads, h / norm);
  const double down = loss();
  EXPECT_NEAR((up - down) / (2 * h) / norm, 1.0, 0.01);
}

TEST(Trainer, StepsOfEitherDtypeLowerTheLoss) {
  const Rows batch(8);
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Case c(options_of(100), dtype);
    const double before = c.trainer.supervised_step(batch.rows, 3e-3).loss;
    double after = before;
    for (int i = 0; i < 25; ++i) after = c.trainer.supervised_step(batch.rows, 3e-3).loss;
    EXPECT_LT(after, 0.7 * before) << c10::toString(dtype);
  }
}

TEST(Trainer, AGradientThatIsNotFiniteIsAUserErrorAndLeavesTheWeights) {
  for (c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Case c(options_of(8192), dtype);
    Rows batch(4);
    c.trainer.supervised_step(batch.rows, 1e-3);
    const at::Tensor values = c.model.values.clone();
    const Optimizer& optimizer = c.trainer.optimizer();
    const at::Tensor m = optimizer.state().tensor("m").clone(), master = optimizer.state().tensor("master").clone();
    for (double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      batch.rows[1].advantages[0] = bad;
      EXPECT_THROW(c.trainer.policy_step(batch.rows, {}, 1.0, 1e-3), UserError);
      EXPECT_TRUE(at::equal(c.model.values, values));
      EXPECT_TRUE(at::equal(optimizer.state().tensor("m"), m));
      EXPECT_TRUE(at::equal(optimizer.state().tensor("master"), master));
      EXPECT_EQ(optimizer.num_steps(), 1);
    }
    batch.rows[1].advantages[0] = 0.5;
    EXPECT_NO_THROW(c.trainer.policy_step(batch.rows, {}, 1.0, 1e-3));
    EXPECT_FALSE(at::equal(c.model.values, values));
  }
}

TEST(Trainer, TheKlOfRolloutToTrainingIsOfFreshRowsAloneWhateverTheirOldLogprobs) {
  Rows batch(4);
  const auto kl = [&](std::initializer_list<size_t> fresh, bool with_old) {
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      batch.rows[i].fresh = std::count(fresh.begin(), fresh.end(), i) > 0;
      batch.rows[i].old = with_old ? std::vector<float>(batch.rows[i].response.size(), -2.0f) : std::vector<float>();
    }
    Case c(options_of(8192));
    return c.trainer.policy_step(batch.rows, algo::algorithm_of(algo::named_algorithm("grpo")), 1.0, 1e-3).kl_rollout_train;
  };
  EXPECT_FALSE(kl({}, false));
  EXPECT_FALSE(kl({}, true));
  const double one = kl({1}, false).value();
  EXPECT_GT(one, 0.01);  // the behaviour is made up
  EXPECT_EQ(kl({1}, true).value(), one);
  EXPECT_NE(kl({1, 2}, true).value(), one);
}

// Equal in every bit, wherever they count.
TEST(Trainer, WhatIsNotTrainableAddsNothing) {
  Rows masked(6), other(6);
  for (size_t i : {1, 4}) masked.rows[i].trainable.assign(masked.rows[i].response.size(), 0);
  masked.rows[2].trainable.assign(masked.rows[2].response.size(), 1);
  masked.rows[2].trainable[0] = 0;
  for (size_t i = 0; i < 6; ++i) other.rows[i].trainable = masked.rows[i].trainable;
  other.rows[1].advantages.assign(other.rows[1].advantages.size(), 1e30f);
  other.rows[2].advantages[0] = std::numeric_limits<float>::quiet_NaN();
  for (auto aggregation : {algo::Aggregation::kTokenMean, algo::Aggregation::kSequenceMeanTokenMean}) {
    algo::Algorithm algorithm;
    algorithm.aggregation = aggregation;
    Case a(options_of(8192), at::kFloat, true), b(options_of(8192), at::kFloat, true);
    const StepReport one = a.trainer.policy_step(masked.rows, algorithm, 1.0, 1e-3);
    const StepReport two = b.trainer.policy_step(other.rows, algorithm, 1.0, 1e-3);
    EXPECT_EQ(one.loss, two.loss);
    EXPECT_EQ(one.trained_tokens, static_cast<double>(masked.rows[0].num_trainable() + masked.rows[2].num_trainable() +
                                                      masked.rows[3].num_trainable() + masked.rows[5].num_trainable()));
    EXPECT_TRUE(at::equal(a.model.values, b.model.values));
    EXPECT_EQ(one.logprobs[1].size(), masked.rows[1].response.size()) << "they are known all the same";
  }
}

TEST(Trainer, AnUpdateThatBeginsTooFarFromOldIsSkippedAndLeavesTheWeights) {
  const Rows rows(3);
  Case c(options_of(8192), at::kFloat, true);
  const auto now = score(c.model.decoder, c.trainer.parameters(), rows.rows, 1.0, 8192);
  const UserLoss plain = [](const LossColumns* columns) {
    return LossGradient{0, columns ? at::ones_like(columns->policy.logprobs_T) : at::Tensor(), {}};
  };
  for (const float moved : {-0.2f, 0.2f})
    for (const UserLoss& loss : {UserLoss(), plain}) {
      std::vector<Row> far = rows.rows;
      for (size_t i = 0; i < far.size(); ++i)
        for (const float logprob : now[i]) far[i].old.push_back(logprob - moved);
      const double kl = std::expm1(moved) - moved;
      algo::Algorithm algorithm;
      algorithm.updates.max_kl = 0.9 * kl;
      const at::Tensor values = c.model.values.clone();
      const StepReport report = c.trainer.policy_step(far, algorithm, 1.0, 1e-3, loss);
      EXPECT_TRUE(report.skipped);
      EXPECT_NEAR(report.kl_old, kl, 1e-5);
      EXPECT_TRUE(at::equal(c.model.values, values));
      algorithm.updates.max_kl = 1.1 * kl;
      Case near(options_of(8192), at::kFloat, true);
      EXPECT_FALSE(near.trainer.policy_step(far, algorithm, 1.0, 1e-3, loss).skipped);
    }
}

TEST(Trainer, AnUpdateWithoutATrainableTokenIsSkippedAndLeavesTheWeights) {
  Rows batch(3);
  for (Row& row : batch.rows) row.trainable.assign(row.response.size(), 0);
  Case c(options_of(8192));
  const at::Tensor values = c.model.values.clone();
  const StepReport report = c.trainer.policy_step(batch.rows, {}, 1.0, 1e-3);
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.loss, 0);
  EXPECT_EQ(report.trained_tokens, 0);
  EXPECT_TRUE(at::equal(c.model.values, values));
  EXPECT_EQ(c.trainer.optimizer().num_steps(), 0);
  for (Row& row : batch.rows) row.trainable.clear();
  EXPECT_FALSE(c.trainer.policy_step(batch.rows, {}, 1.0, 1e-3).skipped);
}

void silence(Rows& batch) {
  for (Row& row : batch.rows) std::ranges::fill(row.advantages, 0.0f);
}

bool equal_states(Case& a, Case& b) {
  bool equal = at::equal(a.model.values, b.model.values) && a.trainer.optimizer().num_steps() == b.trainer.optimizer().num_steps();
  for (const std::string& name : OptimizerState::names())
    equal = equal && at::equal(a.trainer.optimizer().state().tensor(name), b.trainer.optimizer().state().tensor(name));
  return equal;
}

// An entropy bonus too small for a float makes the other take the backward pass, and get a gradient of zeros from it.
TEST(Trainer, AnUpdateWithoutASignalHasNoBackwardPassAndMovesTheOptimizerAsAGradientOfZerosDoes) {
  Rows batch(8), silent(8);
  silence(silent);
  for (const auto& [dtype, decay] : {std::pair{at::kFloat, 0.0}, {at::kFloat, 0.1}, {at::kBFloat16, 0.1}}) {
    Options options = options_of(60);
    options.weight_decay = decay;
    Case skips(options, dtype, true), computes(options, dtype, true);
    const algo::Algorithm plain, bonus{.entropy_coef = 1e-300};
    for (Case* c : {&skips, &computes}) {
      const StepReport first = c->trainer.policy_step(batch.rows, plain, 1.0, 1e-2);
      EXPECT_FALSE(first.without_signal);
    }
    ASSERT_TRUE(equal_states(skips, computes));
    const at::Tensor before = skips.model.values.clone();
    const StepReport without = skips.trainer.policy_step(silent.rows, plain, 1.0, 1e-2);
    const StepReport with = computes.trainer.policy_step(silent.rows, bonus, 1.0, 1e-2);
    EXPECT_TRUE(equal_states(skips, computes));
    EXPECT_FALSE(at::equal(skips.model.values, before)) << "the moments of the step before move the weights";
    EXPECT_TRUE(without.without_signal);
    EXPECT_FALSE(without.skipped);
    EXPECT_EQ(without.grad_norm, 0);
    EXPECT_EQ(with.grad_norm, 0);
    EXPECT_LT(without.activation_peak_bytes, with.activation_peak_bytes / 2) << "nothing is kept for a backward pass";
    EXPECT_EQ(without.logprobs, with.logprobs);
    EXPECT_EQ(without.entropy, with.entropy);
    EXPECT_EQ(without.ratio_max, with.ratio_max);
    EXPECT_EQ(without.trained_tokens, with.trained_tokens);
    const StepReport next = skips.trainer.policy_step(batch.rows, plain, 1.0, 1e-2);
    const StepReport other = computes.trainer.policy_step(batch.rows, plain, 1.0, 1e-2);
    EXPECT_EQ(next.grad_norm, other.grad_norm);
    EXPECT_TRUE(equal_states(skips, computes)) << "and so does all that follows";
  }
}

// As above, and in a step that other rows give a signal. Which rows share a pass changes the order of sums alone.
TEST(Trainer, ARowWithoutASignalHasNoBackwardPassBesideOthersThatHaveOne) {
  Rows batch(8);
  for (size_t i : {0, 3, 4, 7}) std::ranges::fill(batch.rows[i].advantages, 0.0f);
  Case skips(options_of(8192)), computes(options_of(8192));
  const StepReport some = skips.trainer.policy_step(batch.rows, {}, 1.0, 1e-3);
  const StepReport all = computes.trainer.policy_step(batch.rows, {.entropy_coef = 1e-300}, 1.0, 1e-3);
  EXPECT_LT(some.activation_peak_bytes, 0.8 * static_cast<double>(all.activation_peak_bytes));
  EXPECT_NEAR(some.grad_norm, all.grad_norm, 1e-5 * all.grad_norm);
  EXPECT_GT(some.grad_norm, 0);
  EXPECT_NEAR(some.loss, all.loss, 1e-6);
  EXPECT_NEAR(some.entropy, all.entropy, 1e-5);
  EXPECT_EQ(some.trained_tokens, all.trained_tokens);
  for (size_t i = 0; i < batch.rows.size(); ++i)
    for (size_t t = 0; t < some.logprobs[i].size(); ++t) EXPECT_NEAR(some.logprobs[i][t], all.logprobs[i][t], 1e-4) << i << " " << t;
  EXPECT_TRUE(at::allclose(skips.model.values, computes.model.values, 1e-5, 1e-6));
}

// Rows 1 to 3 and 5 to 7 share a prompt each. The second group is silent, of the first some rows are.
TEST(Trainer, AGroupOfWhichSomeRowsHaveASignalStaysWhole) {
  Rows batch(8);
  const std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11, 12};
  for (size_t i : {1, 2, 3, 5, 6, 7}) batch.rows[i].prompt = prompt;
  for (size_t i : {1, 3, 5, 6, 7}) std::ranges::fill(batch.rows[i].advantages, 0.0f);
  Case skips(options_of(8192)), computes(options_of(8192));
  const StepReport some = skips.trainer.policy_step(batch.rows, {}, 1.0, 1e-3);
  const StepReport all = computes.trainer.policy_step(batch.rows, {.entropy_coef = 1e-300}, 1.0, 1e-3);
  EXPECT_EQ(some.computed_tokens, all.computed_tokens);
  EXPECT_LT(some.activation_peak_bytes, 0.9 * static_cast<double>(all.activation_peak_bytes));
  EXPECT_NEAR(some.grad_norm, all.grad_norm, 1e-5 * all.grad_norm);
  EXPECT_TRUE(at::allclose(skips.model.values, computes.model.values, 1e-5, 1e-6));
}

TEST(Trainer, OtherTermsOfTheLossHaveAGradientWithoutASignal) {
  Rows silent(6);
  silence(silent);
  for (Row& row : silent.rows) row.reference.assign(row.response.size(), -1.0f);
  for (const algo::Algorithm& algorithm : {algo::Algorithm{.kl_coef = 0.1}, algo::Algorithm{.entropy_coef = 0.1}}) {
    Case c(options_of(8192));
    const StepReport report = c.trainer.policy_step(silent.rows, algorithm, 1.0, 1e-3);
    EXPECT_TRUE(report.without_signal);
    EXPECT_GT(report.grad_norm, 0);
  }
}

TEST(Trainer, ASignalIsWhatATrainableTokenHas) {
  Rows batch(4);
  silence(batch);
  batch.rows[2].advantages.back() = 1e-30f;
  Case c(options_of(8192));
  EXPECT_FALSE(c.trainer.policy_step(batch.rows, {}, 1.0, 1e-3).without_signal) << "one token of one row is enough";
  batch.rows[2].trainable.assign(batch.rows[2].response.size(), 1);
  batch.rows[2].trainable.back() = 0;
  EXPECT_TRUE(c.trainer.policy_step(batch.rows, {}, 1.0, 1e-3).without_signal);
}

TEST(Trainer, CorrectionTellsHowFarTheSamplesAreFromTheOldPolicy) {
  Rows batch(6);
  for (Row& row : batch.rows) {
    row.old.assign(row.response.size(), 0);
    for (size_t t = 0; t < row.old.size(); ++t) row.old[t] = row.behavior[t] + (t == 0 ? 2.0f : 0.5f);  // ratios of e^2 and e^0.5
  }
  algo::Algorithm algorithm;
  algorithm.correction = {.level = algo::WeightLevel::kToken, .upper = 3};
  Case c(options_of(100));
  const StepReport report = c.trainer.policy_step(batch.rows, algorithm, 1.0, 1e-3);
  const double firsts = 6 / report.trained_tokens;
  EXPECT_NEAR(report.correction.weight_mean, 3 * firsts + std::exp(0.5) * (1 - firsts), 1e-5);
  EXPECT_EQ(report.correction.weight_max, 3);
  EXPECT_NEAR(report.correction.clipped_fraction, firsts, 1e-9);
  EXPECT_EQ(report.correction.rejected_fraction, 0);
  EXPECT_NEAR(report.correction.kl, -(2 * firsts + 0.5 * (1 - firsts)), 1e-5);

  algorithm.correction = {.rejections = algo::rejections_of("token_k2", "1", "test")};  // 2^2 / 2 is above 1
  Case rejecting(options_of(100));
  EXPECT_NEAR(rejecting.trainer.policy_step(batch.rows, algorithm, 1.0, 1e-3).correction.rejected_fraction, firsts, 1e-9);
}

// Updates by a loss of the user's, REINFORCE, in passes of few tokens, in an arena of that budget.
struct Asked {
  TinyModel model;
  device::Arena arena;
  Trainer trainer;
  std::vector<StepReport> reports;
  int64_t num_asked = 0;

  Asked(const model::ModelConfig& config, const Rows& batch, int64_t budget_bytes = 0)
      : model(config),
        arena("device", budget_bytes),
        trainer(options(config), {model.table, model.decoder, model.values, test::ranks_alone(model), arena}) {
    trainer.start();
    const algo::Algorithm algorithm;
    const UserLoss loss = [&](const LossColumns* all) {
      ++num_asked;
      const at::Tensor gradient_R = -all->policy.advantages_T / all->policy.global_tokens;
      return LossGradient{(all->policy.logprobs_T * gradient_R).sum().item<double>(), gradient_R, -0.01 * gradient_R};
    };
    for (int step = 0; step < 3; ++step) reports.push_back(trainer.policy_step(batch.rows, algorithm, 1.0, 1e-3, loss));
  }

  static Options options(const model::ModelConfig& config) {
    Options o = options_of(60);
    if (config.moe.num_experts > 0) o.router_z_coef = o.router_balance_coef = 0.01;
    return o;
  }
};

TEST(Trainer, HowManyPassesWaitForALossOfTheUsersChangesNoBit) {
  const Rows batch(8);
  for (const model::ModelConfig& config : {test::tiny_config(), test::experts_config("qwen3_moe")}) {
    const Asked wide(config, batch);
    const Asked tight(config, batch, wide.arena.bytes() + 1);
    EXPECT_EQ(wide.num_asked, 3);
    EXPECT_EQ(tight.num_asked, 3);
    EXPECT_EQ(wide.reports[0].activation_peak_bytes, tight.reports[0].activation_peak_bytes) << "the first update measures";
    EXPECT_GT(wide.reports[1].activation_peak_bytes, 2 * tight.reports[1].activation_peak_bytes);
    EXPECT_TRUE(at::equal(wide.model.values, tight.model.values));
    for (size_t i = 0; i < wide.reports.size(); ++i) {
      const StepReport &a = wide.reports[i], &b = tight.reports[i];
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_GT(a.grad_norm, 0);
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_EQ(a.entropy, b.entropy);
      EXPECT_EQ(a.logprobs, b.logprobs);
      EXPECT_EQ(a.router_z, b.router_z);
      EXPECT_EQ(a.router_balance, b.router_balance);
      EXPECT_EQ(a.router_load_max, b.router_load_max);
    }
  }
}

TEST(Trainer, WithoutATokenItIsABug) {
  Case c(options_of(8192));
  EXPECT_THROW(c.trainer.supervised_step({}, 1e-3), InternalError);
}

TEST(Optimizer, ClippingScalesTheWholeGradient) {
  const Rows batch(6);
  Options clipped = options_of(8192), free = options_of(8192);
  clipped.clip_grad_norm = 1e-3;
  free.clip_grad_norm = 0;
  clipped.eps = free.eps = 1e-12;
  Case a(clipped), b(free);
  EXPECT_NEAR(a.trainer.supervised_step(batch.rows, 1e-3).grad_norm, b.trainer.supervised_step(batch.rows, 1e-3).grad_norm, 1e-5);
  const at::Tensor scaled = a.trainer.optimizer().state().tensor("m"), whole = b.trainer.optimizer().state().tensor("m");
  EXPECT_NEAR(scaled.norm().item<double>() / 0.1, 1e-3, 1e-6);
  EXPECT_GT(whole.norm().item<double>() / 0.1, 1e-2);
}

// As Loshchilov & Hutter's algorithm 2 for one update: what decays ends lower by lr * weight_decay of what it was.
TEST(Optimizer, WeightDecaySparesNormsAndBiasesUnlessItIsTold) {
  const Rows batch(6);
  Case plain(options_of(8192));
  const at::Tensor start = plain.model.values.clone();
  plain.trainer.supervised_step(batch.rows, 1e-2);
  for (bool norms : {false, true}) {
    Options options = options_of(8192);
    options.weight_decay = 0.5;
    options.decay_norms = norms;
    Case decayed(options);
    decayed.trainer.supervised_step(batch.rows, 1e-2);
    for (const model::ParameterEntry& e : plain.model.table.entries) {
      const auto of = [&](const at::Tensor& flat) { return plain.model.table.view(flat, e); };
      const double decay = e.parameter.shape.size() > 1 || norms ? 1e-2 * 0.5 : 0;
      const at::Tensor want = of(plain.model.values) - decay * of(start);
      EXPECT_LE((of(decayed.model.values) - want).abs().max().item<double>(), decay > 0 ? 1e-6 : 0.0) << e.parameter.name;
    }
  }
}

TEST(Optimizer, ARestoredStateGoesOnAsIfNothingHadHappened) {
  const Rows batch(6);
  Case one(options_of(8192), at::kFloat, true), two(options_of(8192), at::kFloat, true);
  for (int i = 0; i < 3; ++i) one.trainer.supervised_step(batch.rows, 1e-3);
  test::copy_state(one.trainer, two.trainer);
  EXPECT_EQ(two.trainer.optimizer().num_steps(), 3);
  EXPECT_TRUE(at::equal(one.model.values, two.model.values));
  one.trainer.supervised_step(batch.rows, 1e-3);
  two.trainer.supervised_step(batch.rows, 1e-3);
  EXPECT_TRUE(at::equal(one.model.values, two.model.values));
}

TEST(LearningRate, RisesThenFollowsItsSchedule) {
  Options o;
  o.lr = 2.0;
  o.warmup_steps = 4;
  o.min_lr_ratio = 0.1;
  for (const char* kind : {"constant", "linear", "cosine"}) {
    o.lr_schedule = kind;
    for (int64_t step = 1; step <= 4; ++step) EXPECT_DOUBLE_EQ(learning_rate(o, step, 24), 0.5 * static_cast<double>(step)) << kind;
  }
  o.lr_schedule = "constant";
  EXPECT_EQ(learning_rate(o, 24, 24), 2.0);
  o.lr_schedule = "linear";
  EXPECT_NEAR(learning_rate(o, 14, 24), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(learning_rate(o, 24, 24), 0.2, 1e-12);
  EXPECT_NEAR(learning_rate(o, 99, 24), 0.2, 1e-12);  // past the end it stays
  o.lr_schedule = "cosine";
  EXPECT_NEAR(learning_rate(o, 14, 24), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(learning_rate(o, 9, 24), 2.0 * (0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI / 4))), 1e-12);
  EXPECT_NEAR(learning_rate(o, 24, 24), 0.2, 1e-12);
  o.warmup_steps = 0;
  EXPECT_LT(learning_rate(o, 1, 24), 2.0);
}

TEST(LearningRate, KeepsTheCourseThatTheRunBeganWith) {
  Options o;
  EXPECT_EQ(lr_steps_of(o, 0, 20), 20) << "a run that begins";
  EXPECT_EQ(lr_steps_of(o, 20, 50), 20) << "one that goes on for more steps";
  o.lr_steps = 40;
  EXPECT_EQ(lr_steps_of(o, 0, 20), 40);
  EXPECT_EQ(lr_steps_of(o, 20, 50), 40) << "the option says another";
}

// What a row must find in its pass, whoever shares it.
void check_row(const MicroBatch& m, size_t i, const Row& row) {
  const int64_t prompt = std::ssize(row.prompt), n = std::ssize(row.response), from = m.response_offsets[i];
  ASSERT_EQ(m.response_offsets[i + 1] - from, n);
  for (int64_t t = 0; t < n; ++t) {
    EXPECT_EQ(m.targets_R[from + t].item<int64_t>(), row.response[static_cast<size_t>(t)]);
    const int64_t predictor = m.tokens.rows_R[from + t].item<int64_t>();
    EXPECT_EQ(m.tokens.positions_T[predictor].item<int64_t>(), prompt - 1 + t);
    EXPECT_EQ(m.tokens.ids_T[predictor].item<int64_t>(), t == 0 ? row.prompt.back() : row.response[static_cast<size_t>(t - 1)]);
  }
}

TEST(MicroBatch, RowsKeepTheirOrderAndPassesTheirBudget) {
  const Rows batch(15);
  size_t next = 0;
  for (const MicroBatch& m : pack(batch.rows, 70)) {
    EXPECT_TRUE(m.rows.size() == 1 || m.tokens.ids_T.numel() <= 70);
    int64_t begin = 0;
    for (size_t i = 0; i < m.rows.size(); ++i) {
      ASSERT_EQ(m.rows[i], next);
      const Row& row = batch.rows[next++];
      check_row(m, i, row);
      EXPECT_EQ(m.trees[i].begin, begin);
      EXPECT_TRUE(m.trees[i].branches.empty());
      ASSERT_EQ(m.trees[i].stem, std::ssize(row.prompt) + std::ssize(row.response) - 1);
      for (int64_t t = 0; t < m.trees[i].stem; ++t) EXPECT_EQ(m.tokens.positions_T[begin + t].item<int64_t>(), t);
      begin += m.trees[i].stem;
    }
    EXPECT_EQ(m.tokens.ids_T.numel(), begin);
  }
  EXPECT_EQ(next, batch.rows.size());
}

// Groups of four samples; the prompt of one group has a single token, which is not worth a stem.
struct Groups {
  std::vector<std::vector<int32_t>> prompts = {{5, 6, 7, 8, 9}, {4}, {5, 6, 7}};
  Rows samples{12};
  Groups() {
    for (size_t i = 0; i < samples.rows.size(); ++i) samples.rows[i].prompt = prompts[i / 4];
  }
};

TEST(MicroBatch, PassesAreLevelWhereTheLastWouldBeSmall) {
  const std::vector<int32_t> ids(20, 5);
  std::vector<Row> rows(9);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].prompt = std::span(ids).first(1), rows[i].response = std::span(ids).first(10);
  const std::vector<MicroBatch> passes = pack(rows, 80);  // ten tokens a row: eight would fit
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[0].tokens.ids_T.numel(), 50);
  EXPECT_EQ(passes[1].tokens.ids_T.numel(), 40);
}

TEST(MicroBatch, NeighboursWithOnePromptShareItWithinThePass) {
  const Groups groups;
  const std::vector<Row>& rows = groups.samples.rows;
  int64_t unshared = 0;
  for (const Row& row : rows) unshared += row.num_tokens() - 1;
  const std::vector<MicroBatch> one = pack(rows, 100000);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].tokens.ids_T.numel(), unshared - 3 * 4 - 3 * 2);  // three prompts less their last token, twice
  EXPECT_EQ(one[0].trees.size(), 6U);
  EXPECT_EQ(one[0].trees[0].branches.size(), 4U);
  for (int64_t budget : {20, 40, 70, 100000}) {
    size_t next = 0;
    for (const MicroBatch& m : pack(rows, budget)) {
      EXPECT_TRUE(m.rows.size() == 1 || m.tokens.ids_T.numel() <= budget);
      for (size_t i = 0; i < m.rows.size(); ++i) {
        ASSERT_EQ(m.rows[i], next);
        check_row(m, i, rows[next++]);
      }
    }
    EXPECT_EQ(next, rows.size());
  }
}

TEST(Trainer, ASharedPromptGivesTheNumbersOfPromptsOfTheirOwn) {
  const Groups groups;
  for (bool parity : {false, true}) {
    Case together(options_of(8192), at::kFloat, parity), apart(options_of(1), at::kFloat, parity);
    const StepReport a = together.trainer.supervised_step(groups.samples.rows, 1e-3), b = apart.trainer.supervised_step(groups.samples.rows, 1e-3);
    EXPECT_EQ(a.sequence_tokens, b.sequence_tokens);
    EXPECT_LT(a.computed_tokens, b.computed_tokens);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * b.grad_norm);
    EXPECT_LE((together.trainer.grads() - apart.trainer.grads()).abs().max().item<double>(), 1e-6 * b.grad_norm);
    for (size_t i = 0; i < a.logprobs.size(); ++i)
      for (size_t t = 0; t < a.logprobs[i].size(); ++t) {
        if (parity) EXPECT_EQ(a.logprobs[i][t], b.logprobs[i][t]);  // bit for bit
        else EXPECT_NEAR(a.logprobs[i][t], b.logprobs[i][t], 1e-5);
      }
  }
}

TEST(MicroBatch, ARowWithoutAResponseIsABug) {
  Rows batch(2);
  batch.rows[1].response = {};
  EXPECT_THROW(pack(batch.rows, 100), InternalError);
}

}  // namespace
}  // namespace tandem::train
