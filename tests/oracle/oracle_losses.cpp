// SPDX-License-Identifier: Apache-2.0
#include "oracle/oracle_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/algo/advantage.h"
#include "tandem/algo/correction.h"
#include "tandem/algo/kl_control.h"
#include "tandem/algo/policy_loss.h"
#include "tandem/algo/sequences.h"
#include "tandem/algo/surrogate.h"
#include "tandem/algo/value_loss.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/model/op/function.h"
#include "tandem/reward/graders.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

void flatten(const json& value, std::vector<double>& out) {
  if (value.is_array())
    for (const json& entry : value) flatten(entry, out);
  else
    out.push_back(value.is_boolean() ? value.get<bool>() : value.get<double>());
}

std::vector<double> numbers(const json& value) {
  std::vector<double> all;
  flatten(value, all);
  return all;
}

at::Tensor tensor(const json& value) {
  const std::vector<double> all = numbers(value);
  at::Tensor t = at::empty({std::ssize(all)}, at::kDouble);
  std::copy(all.begin(), all.end(), t.mutable_data_ptr<double>());
  return t;
}

std::vector<double> numbers(const at::Tensor& t) {
  const at::Tensor flat = t.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// The differences found in one case; the README's tolerances. Some references computed in fp32, as do our kernels.
class Comparison {
 public:
  explicit Comparison(const json& c, bool by_kernel = false) {
    const std::string source = c.value("source", "");
    in_fp32_ = by_kernel || source.find("(fp32)") != std::string::npos || source.find("AReaL") != std::string::npos;
  }

  void equal(const std::string& what, const std::vector<double>& seen, const std::vector<double>& expected,
             const std::vector<double>& mask = {}) {
    if (!why_.empty()) return;
    if (seen.size() != expected.size()) why_ = join_text(what, ": ", seen.size(), " values, expected ", expected.size());
    for (size_t i = 0; why_.empty() && i < expected.size(); ++i) {
      if (!mask.empty() && mask[i] == 0) continue;
      const double allowed = in_fp32_ ? 1e-6 + 1e-5 * std::abs(expected[i]) : 1e-8 + 1e-9 * std::abs(expected[i]);
      if (!(std::abs(seen[i] - expected[i]) <= allowed))
        why_ = join_text(what, "[", i, "] is ", seen[i], ", expected ", expected[i]);
    }
  }
  void tell(Report& report, const std::string& name) const { why_.empty() ? report.pass() : report.fail(name, why_); }

 private:
  bool in_fp32_;
  std::string why_;
};

/// The mask of a case, its rows end to end; its global counts are those of the case unless it gives others.
algo::LossScope scope_of(const json& mask) {
  algo::LossScope scope;
  const int64_t width = std::ssize(mask[0]);
  scope.trainable_T = tensor(mask).to(at::kBool);
  scope.offsets_S = at::arange(std::ssize(mask), at::kLong) * width;
  scope.global_tokens = scope.trainable_T.sum().item<double>();
  scope.global_sequences = 0;
  for (const json& row : mask) {
    double tokens = 0;
    for (double entry : numbers(row)) tokens += entry;
    scope.global_sequences += tokens > 0;
  }
  return scope;
}

algo::Algorithm algorithm_of(const json& config, const json& mask) {
  algo::Algorithm algorithm;
  if (config.value("loss", "") != "geo_mean")  // which is a mean over sequences, whatever else is asked for
    algorithm.aggregation = algo::algorithm_of({.aggregation = config.value("agg", "token-mean")}).aggregation;
  const bool has_scale = config.contains("loss_scale_factor") && !config["loss_scale_factor"].is_null();
  algorithm.scale_tokens = has_scale ? config["loss_scale_factor"].get<double>() : static_cast<double>(mask[0].size());
  return algorithm;
}

/// All rows of a case, end to end.
algo::TokenAdvantages advantages_of(const json& in, const algo::Algorithm& algorithm) {
  std::vector<double> scores, greedy_scores;
  std::vector<int64_t> groups, lengths;
  std::vector<std::vector<uint8_t>> trainable;
  for (const json& row : in["token_rewards"]) {
    const std::vector<double> rewards_T = numbers(row);
    scores.push_back(std::accumulate(rewards_T.begin(), rewards_T.end(), 0.0));
  }
  for (const json& row : in["mask"]) {
    trainable.emplace_back();
    for (const double entry : numbers(row)) trainable.back().push_back(entry != 0);
    lengths.push_back(std::accumulate(trainable.back().begin(), trainable.back().end(), int64_t{0}));
  }
  if (in.contains("group")) groups = in["group"].get<std::vector<int64_t>>();
  if (in.contains("reward_baselines")) greedy_scores = numbers(in["reward_baselines"]);
  const std::vector<double> compared = algo::compare_responses({scores, groups, lengths, greedy_scores}, algorithm);

  std::vector<algo::TokenAdvantages> rows;
  for (size_t r = 0; r < scores.size(); ++r) {
    const std::vector<double> rewards_T = numbers(in["token_rewards"][r]);
    const std::vector<double> values_T = in.contains("values") ? numbers(in["values"][r]) : std::vector<double>();
    rows.push_back(algo::token_advantages({rewards_T, trainable[r], values_T}, compared[r], algorithm));
  }
  std::vector<algo::WhitenedTokens> batch;
  for (size_t r = 0; r < rows.size(); ++r) batch.push_back({rows[r].advantages_T, trainable[r]});
  if (algorithm.whitens) algo::whiten(batch, 0);
  algo::TokenAdvantages out;
  for (size_t r = 0; r < rows.size(); ++r) {
    out.advantages_T.insert(out.advantages_T.end(), rows[r].advantages_T.begin(), rows[r].advantages_T.end());
    out.returns_T.insert(out.returns_T.end(), rows[r].returns_T.begin(), rows[r].returns_T.end());
  }
  return out;
}

void advantages_case(const json& c, Report& report) {
  const json& config = c["config"];
  const std::string estimator = config["estimator"];
  algo::Algorithm algorithm;
  algorithm.advantage = algo::advantage_of(estimator == "grpo" && !config.value("norm_by_std", true) ? "dr_grpo" : estimator);
  algorithm.std_eps = config.value("eps", algorithm.std_eps);
  algorithm.whitens = estimator.starts_with("reinforce_pp");
  algorithm.gamma = config.value("gamma", 1.0);
  if (config.value("f_norm", 1.0) != 1 || (estimator == "grpo_passk" && !config.value("norm_by_std", true)))
    return report.skip(c["name"], "a form of " + estimator + " that nobody published");
  Comparison comparison(c);
  comparison.equal("advantages", advantages_of(c["inputs"], algorithm).advantages_T, numbers(c["expected"]["advantages"]),
                   numbers(c["inputs"]["mask"]));
  comparison.tell(report, c["name"]);
}

void gae_case(const json& c, Report& report) {
  algo::Algorithm algorithm;
  algorithm.advantage = algo::Advantage::kGae;
  algorithm.whitens = true;
  algorithm.gamma = c["config"]["gamma"];
  algorithm.lambda = c["config"]["lam"];
  const algo::TokenAdvantages seen = advantages_of(c["inputs"], algorithm);
  const std::vector<double> mask = numbers(c["inputs"]["mask"]);
  Comparison comparison(c);
  comparison.equal("advantages_whitened", seen.advantages_T, numbers(c["expected"]["advantages_whitened"]), mask);
  comparison.equal("returns", seen.returns_T, numbers(c["expected"]["returns"]), mask);
  comparison.tell(report, c["name"]);
}

algo::PolicyLossInput loss_input(const json& in, const char* old_name) {
  const algo::LossScope scope = scope_of(in["mask"]);
  algo::PolicyLossInput out;
  out.logprobs_T = tensor(in["logprob"]).requires_grad_();
  out.old_T = out.behavior_T = tensor(in[old_name]);
  out.advantages_T = tensor(in["advantages"]);
  out.correction_T =
      in.contains("is_weights") && !in["is_weights"].is_null() ? tensor(in["is_weights"]) : at::ones({out.old_T.numel()}, at::kDouble);
  out.trainable_T = scope.trainable_T;
  out.offsets_S = scope.offsets_S;
  out.global_tokens = scope.global_tokens;
  out.global_sequences = scope.global_sequences;
  return out;
}

void policy_loss_case(const json& c, Report& report) {
  const json &config = c["config"], &expected = c["expected"];
  algo::PolicyLossInput in = loss_input(c["inputs"], "old_logprob");
  algo::Algorithm algorithm = algorithm_of(config, c["inputs"]["mask"]);
  const std::string loss = config["loss"];
  algorithm.surrogate = algo::algorithm_of({.loss = loss == "vanilla" ? "clip" : loss == "geo_mean" ? "gmpo" : loss}).surrogate;
  algorithm.clip = {config.value("clip_ratio_low", 0.0), config.value("clip_ratio_high", 0.0), config.value("clip_ratio_c", 0.0)};
  algorithm.sapo = {config.value("tau_pos", 1.0), config.value("tau_neg", 1.0)};
  const algo::PolicyLoss seen = algo::policy_loss(in, algorithm);
  seen.loss.backward();
  Comparison comparison(c);
  comparison.equal("loss", {seen.loss.item<double>()}, {expected["loss"]});
  comparison.equal("grad_logprob", numbers(in.logprobs_T.grad()), numbers(expected["grad_logprob"]));
  comparison.equal("clipfrac", {seen.sums.clipped / in.global_tokens}, {expected["clipfrac"]});
  if (expected.contains("clipfrac_lower"))
    comparison.equal("clipfrac_lower", {seen.sums.clipped_dual / in.global_tokens}, {expected["clipfrac_lower"]});
  comparison.equal("approx_kl", {seen.sums.kl_old / in.global_tokens}, {expected["approx_kl"]});
  comparison.tell(report, c["name"]);
}

// AReaL's rule: weights by token, or the geometric mean of a sequence. What is outside the bounds is left out (mask) or brought to
// them (clamp). The denominator stays.
algo::Correction areal_correction(const json& rule) {
  algo::Correction correction;
  const bool by_token = rule["level"] == "token";
  correction.level = by_token ? algo::WeightLevel::kToken : algo::WeightLevel::kSequenceMean;
  const double lower = rule.value("lower", 0.0), upper = rule["upper"];
  if (rule["action"] == "clamp") {
    correction.lower = lower, correction.upper = upper;
    return correction;
  }
  // Its ratio is behavior's inverse: bounds change places.
  const auto reject_by = by_token ? algo::Rejection::Level::kToken : algo::Rejection::Level::kSequenceMean;
  correction.rejections.push_back({algo::Rejection::Distance::kK1, reject_by, 1 / upper, 1 / lower});
  return correction;
}

void decoupled_case(const json& c, Report& report) {
  const json &config = c["config"], &expected = c["expected"];
  algo::PolicyLossInput in = loss_input(c["inputs"], "proximal_logprob");
  in.behavior_T = tensor(c["inputs"]["behave_logprob"]);
  Comparison comparison(c);
  // Without a rule the reference applies no weight proximal / behave either.
  if (!config["rejection"].is_null()) {
    const algo::Corrected corrected =
        algo::correct(in.old_T, in.behavior_T, in.trainable_T, in.offsets_S, areal_correction(config["rejection"]));
    in.trainable_T = corrected.trainable_T;
    in.correction_T = corrected.weights_T;
    comparison.equal("behave_imp_weight", numbers(corrected.weights_T * corrected.trainable_T), numbers(expected["behave_imp_weight"]));
  }
  algo::Algorithm algorithm = algorithm_of(config, c["inputs"]["mask"]);
  const double low = config["eps_clip"];
  algorithm.clip = {low, config["eps_clip_higher"].is_null() ? low : config["eps_clip_higher"].get<double>(),
                    config["c_clip"].is_null() ? 0 : config["c_clip"].get<double>()};
  const algo::PolicyLoss seen = algo::policy_loss(in, algorithm);
  seen.loss.backward();
  comparison.equal("loss", {seen.loss.item<double>()}, {expected["loss"]});
  comparison.equal("grad_logprob", numbers(in.logprobs_T.grad()), numbers(expected["grad_logprob"]));
  comparison.tell(report, c["name"]);
}

// "2.0" or 2.0 truncates from above; "0.5_2.0" zeroes what is outside.
algo::Correction verl_correction(const json& config) {
  algo::Correction correction;
  if (config.contains("is_level") && !config["is_level"].is_null()) {
    correction.level = config["is_level"] == "token" ? algo::WeightLevel::kToken : algo::WeightLevel::kSequence;
    const json& bound = config["is_threshold"];
    const std::string text = bound.is_string() ? bound.get<std::string>() : "";
    const size_t cut = text.find('_');
    if (cut != std::string::npos) {
      correction.outside = algo::Outside::kZero;
      correction.lower = std::stod(text.substr(0, cut));
    }
    correction.upper = bound.is_string() ? std::stod(cut == std::string::npos ? text : text.substr(cut + 1)) : bound.get<double>();
  }
  correction.normalize = config.value("is_batch_normalize", false);
  if (config.contains("rejection") && !config["rejection"].is_null()) {
    const json& bounds = config["rejection_threshold"];
    const std::string text = bounds.is_string() ? bounds.get<std::string>() : bounds.dump();
    correction.rejections = algo::rejections_of(config["rejection"], text, "rejection");
  }
  return correction;
}

void correction_case(const json& c, Report& report) {
  const json &in = c["inputs"], &expected = c["expected"];
  const algo::LossScope scope = scope_of(in["mask"]);
  const algo::Correction correction = verl_correction(c["config"]);
  algo::Corrected seen =
      algo::correct(tensor(in["old_logprob"]), tensor(in["rollout_logprob"]), scope.trainable_T, scope.offsets_S, correction);
  if (correction.normalize) algo::normalize(seen, seen.weights);
  Comparison comparison(c);
  comparison.equal("modified_mask", numbers(seen.trainable_T), numbers(expected["modified_mask"]));
  if (expected.contains("is_weights"))
    comparison.equal("is_weights", numbers(seen.weights_T), numbers(expected["is_weights"]), numbers(in["mask"]));
  comparison.tell(report, c["name"]);
}

void value_loss_case(const json& c, Report& report) {
  const json &in = c["inputs"], &expected = c["expected"];
  const algo::LossScope scope = scope_of(in["mask"]);
  const at::Tensor values_T = tensor(in["vpreds"]).requires_grad_();
  const algo::ValueLoss seen = algo::value_loss({values_T, tensor(in["old_values"]), tensor(in["returns"])}, c["config"]["clip"], scope,
                                                algorithm_of(c["config"], in["mask"]));
  seen.loss.backward();
  Comparison comparison(c);
  comparison.equal("loss", {seen.loss.item<double>()}, {expected["loss"]});
  comparison.equal("grad_vpreds", numbers(values_T.grad()), numbers(expected["grad_vpreds"]));
  comparison.equal("clipfrac", {seen.clipped / scope.global_tokens}, {expected["clipfrac"]});
  comparison.tell(report, c["name"]);
}

void misc_case(const json& c, Report& report) {
  const json &config = c["config"], &in = c["inputs"], &expected = c["expected"];
  Comparison comparison(c);
  if (config.contains("horizon")) {
    algo::AdaptiveKl weight = {config["init"], config["target"], config["horizon"]};
    std::vector<double> seen;
    for (const json& update : in["updates_kl_nsteps"]) {
      weight.update(update[0], update[1]);
      seen.push_back(weight.coef);
    }
    comparison.equal("coef_after_each", seen, numbers(expected["coef_after_each"]));
  } else {
    std::vector<int64_t> offsets;
    int64_t num_tokens = 0;
    for (const json& row : in["logprob"]) offsets.push_back(std::exchange(num_tokens, num_tokens + std::ssize(row)));
    const at::Tensor offsets_S = at::arange(std::ssize(offsets), at::kLong);
    std::copy(offsets.begin(), offsets.end(), offsets_S.mutable_data_ptr<int64_t>());
    const at::Tensor all_T = at::ones({num_tokens}, at::kBool);
    comparison.equal("keep_mask_concat",
                     numbers(algo::on_policy_mask(tensor(in["logprob"]), tensor(in["old_logprob"]), tensor(in["advantages"]),
                                                  {all_T, offsets_S}, config["delta"])),
                     numbers(expected["keep_mask_concat"]));
  }
  comparison.tell(report, c["name"]);
}

void overlong_case(const json& c, Report& report) {
  const json &config = c["config"], &expected = c["expected"];
  const int64_t limit = config["max_len"], buffer = config["buffer"];
  std::vector<double> ramp, punishment;
  for (const int64_t length : c["inputs"]["lengths"].get<std::vector<int64_t>>()) {
    ramp.push_back(config["penalty_factor"].get<double>() * reward::overlong_ramp(length, limit, buffer));
    punishment.push_back(reward::overlong_penalty(length, limit, buffer));
  }
  Comparison comparison(c);
  comparison.equal("verl_dapo_penalty", ramp, numbers(expected["verl_dapo_penalty"]));
  comparison.equal("trl_soft_overlong", punishment, numbers(expected["trl_soft_overlong"]));
  comparison.tell(report, c["name"]);
}

void kl_case(const json& c, Report& report) {
  const json &config = c["config"], &in = c["inputs"], &expected = c["expected"];
  if (config.value("weighted_by_importance_ratio", false)) {
    const at::Tensor ratio_T = tensor(in["importance_ratio"]), all_T = at::ones({ratio_T.numel()}, at::kBool);
    Comparison comparison(c);
    std::vector<double> seen;  // of each token: the penalty of that token alone
    for (int64_t t = 0; t < ratio_T.numel(); ++t) {
      algo::Algorithm one;
      one.kl_estimator = algo::algorithm_of({.kl_estimator = config["estimator"]}).kl_estimator;
      one.kl_coef = 1;
      one.aggregation = algo::Aggregation::kTokenSum;
      auto only = [t](const at::Tensor& all) { return all.narrow(0, t, 1); };
      seen.push_back(algo::kl_penalty(only(tensor(in["logprob"])), only(tensor(in["ref_logprob"])),
                                      {only(all_T), at::arange(1, at::kLong), 1, 1}, one, only(ratio_T)).sum);
    }
    comparison.equal("kl_per_token", seen, numbers(expected["kl_per_token"]));
    return comparison.tell(report, c["name"]);
  }
  const algo::LossScope scope = scope_of(in["mask"]);
  algo::Algorithm algorithm = algorithm_of(config, in["mask"]);
  algorithm.kl_estimator = algo::algorithm_of({.kl_estimator = config["estimator"]}).kl_estimator;
  algorithm.kl_coef = 1;
  algorithm.kl_cut = 10;
  const at::Tensor logprobs_T = tensor(in["logprob"]).requires_grad_(), reference_T = tensor(in["ref_logprob"]);
  const algo::KlPenalty seen = algo::kl_penalty(logprobs_T, reference_T, scope, algorithm);
  seen.loss.backward();
  Comparison comparison(c);
  comparison.equal("kl_per_token", numbers(algo::kl_estimate(logprobs_T, reference_T, algorithm.kl_estimator, algorithm.kl_cut)),
                   numbers(expected["kl_per_token"]), numbers(in["mask"]));
  comparison.equal("kl_loss", {seen.loss.item<double>()}, {expected["kl_loss"]});
  comparison.equal("grad_logprob", numbers(logprobs_T.grad()), numbers(expected["grad_logprob"]));
  comparison.tell(report, c["name"]);
}

// Through the output head of training. Over hidden states that are the unit matrix its weight is the logits, and so are the gradients.
void entropy_case(const json& c, Report& report) {
  const json &in = c["inputs"], &expected = c["expected"];
  const algo::LossScope scope = scope_of(in["mask"]);
  const int64_t T = scope.trainable_T.numel();
  model::op::Parameter logits_VT;
  logits_VT.value = tensor(in["logits"]).view({T, -1}).t().to(at::kFloat).contiguous();
  logits_VT.grad = at::zeros_like(logits_VT.value);
  const model::kernel::Kernels kernels(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
  const model::op::HeadOutput head = model::op::head_logprobs(
      kernels, {.hidden_RH = at::eye(T).requires_grad_(), .targets_R = tensor(in["labels"]).to(at::kLong)}, logits_VT);
  const at::Tensor entropy = algo::aggregate(head.entropy_R, scope, algorithm_of(c["config"], in["mask"]));
  entropy.backward();
  Comparison comparison(c, true);
  comparison.equal("entropy_per_token", numbers(head.entropy_R), numbers(expected["entropy_per_token"]), numbers(in["mask"]));
  comparison.equal("entropy", {entropy.item<double>()}, {expected["entropy"]});
  comparison.equal("grad_logits", numbers(logits_VT.grad.t()), numbers(expected["grad_logits"]));
  comparison.equal("logprob_of_label", numbers(head.logprobs_R), numbers(expected["logprob_of_label"]));
  comparison.tell(report, c["name"]);
}

void aggregation_case(const json& c, Report& report) {
  const json &config = c["config"], &mask = c["inputs"]["mask"];
  algo::LossScope scope = scope_of(mask);
  double scale = 1;
  if (config.contains("dp_size")) {
    scope.global_tokens = config["batch_num_tokens"];
    scope.global_sequences = config["global_batch_size"];
    scale = config["dp_size"];  // the reference undoes the mean that its gradient exchange takes
  }
  const at::Tensor loss = algo::aggregate(tensor(c["inputs"]["loss_mat"]), scope, algorithm_of(config, mask));
  Comparison comparison(c);
  comparison.equal("loss", {loss.item<double>() * scale}, {c["expected"]["loss"]});
  comparison.tell(report, c["name"]);
}

// The unclipped loss of a token with advantage -1 is its ratio.
void ratio_literal(const json& c, Comparison& comparison) {
  const at::Tensor log_ratio_T = tensor(c["inputs"]["log_ratio"]);
  const int64_t n = log_ratio_T.numel();
  const at::Tensor zero_T = at::zeros_like(log_ratio_T), one_T = zero_T + 1;
  algo::Algorithm algorithm;
  algorithm.clip.low = 1;
  algorithm.aggregation = algo::Aggregation::kTokenSum;
  std::vector<double> ratios;
  for (int64_t i = 0; i < n; ++i)
    ratios.push_back(
        algo::policy_loss({log_ratio_T, zero_T, zero_T, one_T, -one_T, at::arange(n, at::kLong).eq(i), at::arange(1, at::kLong), 1, 1},
                          algorithm)
            .loss.item<double>());
  comparison.equal("ratio", ratios, numbers(c["expected"]["ratio"]));
}

void cispo_literal(const json& c, Comparison& comparison) {
  const at::Tensor logprobs_T = tensor(c["inputs"]["logprob"]).requires_grad_(), advantages_T = tensor(c["inputs"]["advantages"]);
  const algo::Sequences all(at::ones({logprobs_T.numel()}, at::kBool), at::arange(1, at::kLong));
  algo::Algorithm algorithm;
  algorithm.surrogate = algo::Surrogate::kCispo;
  const at::Tensor log_ratio_T = at::zeros_like(advantages_T) + std::log(c["config"]["ratio"].get<double>());
  const algo::TokenLoss seen = algo::token_loss({logprobs_T, log_ratio_T, advantages_T, all}, algorithm);
  seen.loss_T.sum().backward();
  comparison.equal("loss_per_token", numbers(seen.loss_T), numbers(c["expected"]["loss_per_token"]));
  comparison.equal("grad_logprob_per_token", numbers(logprobs_T.grad()), numbers(c["expected"]["grad_logprob_per_token"]));
}

void proximal_literal(const json& c, Comparison& comparison) {
  const json& in = c["inputs"];
  const at::Tensor behind_T = tensor(in["version_current"]) - tensor(in["version_behave"]);
  const at::Tensor seen_T = algo::loglinear_proximal(tensor(in["behave_logprob"]), tensor(in["current_logprob"]), behind_T);
  comparison.equal("proximal_logprob", numbers(seen_T), {c["expected"]["proximal_logprob"]});
}

void icepop_literal(const json& c, Comparison& comparison) {
  const at::Tensor l_T = tensor(c["inputs"]["ratio"]).log(), mask_T = at::ones({l_T.numel()}, at::kBool);
  const algo::Corrected seen = algo::correct(l_T, at::zeros_like(l_T), mask_T, at::arange(1, at::kLong), verl_correction(c["config"]));
  comparison.equal("weights", numbers(seen.weights_T), numbers(c["expected"]["weights"]));
  comparison.equal("mask", numbers(seen.trainable_T), numbers(mask_T));
}

// Two rows whose tokens all have the same log ratio.
void rejection_literal(const json& c, Comparison& comparison) {
  const json &in = c["inputs"], &expected = c["expected"];
  const at::Tensor l_T = tensor(json::array({in["log_ratio_row0"], in["log_ratio_row1"]}));
  const algo::Corrected seen =
      algo::correct(l_T, at::zeros_like(l_T), at::ones({2}, at::kBool), at::arange(2, at::kLong), verl_correction(c["config"]));
  comparison.equal("weights", numbers(seen.weights_T), {expected["weight_row0"], expected["weight_row1"]});
  const double row0 = expected["row0_rejected"].get<bool>(), row1 = expected["row1_rejected"].get<bool>();
  comparison.equal("kept", numbers(seen.trainable_T), {1 - row0, 1 - row1});
}

void literal_case(const json& c, Report& report) {
  static const std::map<std::string, void (*)(const json&, Comparison&)> cases = {
      {"token_k1_integration", ratio_literal}, {"cispo_closed_form", cispo_literal}, {"prox_loglinear_v2", proximal_literal},
      {"prox_loglinear_v4", proximal_literal}, {"icepop_exact", icepop_literal},     {"rollout_corr_mask_mode", rejection_literal}};
  const auto known = cases.find(c["name"]);
  if (known == cases.end()) return report.skip(c["name"], "no such case");
  Comparison comparison(c);
  known->second(c, comparison);
  comparison.tell(report, c["name"]);
}

}  // namespace

const json& cases_of(const json& file, const std::string& file_name) {
  if (!file.is_object() || !file.contains("cases") || !file["cases"].is_array())
    throw UserError(file_name, "has no list `cases`", "expected {\"cases\": [...]}");
  return file["cases"];
}

void run_losses(const json& file, const std::string& file_name, Report& report) {
  using Formula = void (*)(const json&, Report&);
  static const std::map<std::string, Formula> formulas = {
      {"group_advantages", advantages_case}, {"policy_loss", policy_loss_case}, {"decoupled_ppo", decoupled_case},
      {"kl", kl_case},                       {"entropy", entropy_case},         {"aggregation", aggregation_case},
      {"literal", literal_case},             {"gae", gae_case},                 {"rollout_correction", correction_case},
      {"value_loss", value_loss_case},       {"misc", misc_case},               {"overlong", overlong_case}};
  const std::string stem = std::filesystem::path(file_name).stem().string();
  if (stem == "staleness") return run_staleness(file, file_name, report);
  const auto formula = formulas.find(stem);
  if (formula == formulas.end()) {
    std::string kinds = "staleness";
    for (const auto& [kind, unused] : formulas) kinds += " " + kind;
    throw UserError(file_name, "a file's name says which formula its cases are of, and `" + stem + "` is none", "one of " + kinds);
  }
  for (const json& c : cases_of(file, file_name)) formula->second(c, report);
}

}  // namespace tandem::cli
