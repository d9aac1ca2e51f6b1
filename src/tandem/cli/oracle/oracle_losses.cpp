// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/oracle/oracle_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/algo/advantage.h"
#include "tandem/algo/policy_loss.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"

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

/// The differences found in one case; the README's tolerances for fp64.
class Comparison {
 public:
  void equal(const std::string& what, const std::vector<double>& seen, const std::vector<double>& expected,
             const std::vector<double>& mask = {}) {
    if (!why_.empty()) return;
    if (seen.size() != expected.size()) why_ = join_text(what, ": ", seen.size(), " values, expected ", expected.size());
    for (size_t i = 0; why_.empty() && i < expected.size(); ++i) {
      if (!mask.empty() && mask[i] == 0) continue;
      if (!(std::abs(seen[i] - expected[i]) <= 1e-8 + 1e-9 * std::abs(expected[i])))
        why_ = join_text(what, "[", i, "] is ", seen[i], ", expected ", expected[i]);
    }
  }
  void tell(Report& report, const std::string& name) const { why_.empty() ? report.pass() : report.fail(name, why_); }

 private:
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
  algorithm.aggregation = algo::aggregation_of(config.value("agg", "token-mean"));
  const bool has_scale = config.contains("loss_scale_factor") && !config["loss_scale_factor"].is_null();
  algorithm.scale_tokens = has_scale ? config["loss_scale_factor"].get<double>() : static_cast<double>(mask[0].size());
  return algorithm;
}

void advantages_case(const json& c, Report& report) {
  const json& in = c["inputs"];
  const std::string estimator = c["config"]["estimator"];
  if (estimator != "grpo" && estimator != "dr_grpo") return report.skip(c["name"], "estimator " + estimator + " is not built");
  algo::Algorithm algorithm;
  algorithm.advantage = c["config"].value("norm_by_std", true) ? algo::Advantage::kGrpo : algo::Advantage::kDrGrpo;
  algorithm.std_eps = c["config"].value("eps", algorithm.std_eps);
  std::vector<double> scores;
  for (const json& row : in["token_rewards"]) {
    scores.push_back(0);
    for (double reward : numbers(row)) scores.back() += reward;
  }
  const auto advantages = algo::group_advantages(scores, in["group"].get<std::vector<int64_t>>(), algorithm);
  std::vector<double> per_token;
  for (size_t r = 0; r < scores.size(); ++r)
    for (double m : numbers(in["mask"][r])) per_token.push_back(advantages[r] * m);
  Comparison comparison;
  comparison.equal("advantages", per_token, numbers(c["expected"]["advantages"]));
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
  if (config["loss"] != "vanilla") return report.skip(c["name"], "loss " + config["loss"].get<std::string>() + " is not built");
  algo::PolicyLossInput in = loss_input(c["inputs"], "old_logprob");
  algo::Algorithm algorithm = algorithm_of(config, c["inputs"]["mask"]);
  algorithm.clip = {config["clip_ratio_low"], config["clip_ratio_high"], config["clip_ratio_c"]};
  const algo::PolicyLoss seen = algo::policy_loss(in, algorithm);
  seen.loss.backward();
  Comparison comparison;
  comparison.equal("loss", {seen.loss.item<double>()}, {expected["loss"]});
  comparison.equal("grad_logprob", numbers(in.logprobs_T.grad()), numbers(expected["grad_logprob"]));
  comparison.equal("clipfrac", {seen.sums.clipped / in.global_tokens}, {expected["clipfrac"]});
  comparison.equal("clipfrac_lower", {seen.sums.clipped_dual / in.global_tokens}, {expected["clipfrac_lower"]});
  comparison.equal("approx_kl", {seen.sums.kl_old / in.global_tokens}, {expected["approx_kl"]});
  comparison.tell(report, c["name"]);
}

void decoupled_case(const json& c, Report& report) {
  const json &config = c["config"], &expected = c["expected"];
  if (!config["rejection"].is_null()) return report.skip(c["name"], "rejection sampling is not built");
  algo::PolicyLossInput in = loss_input(c["inputs"], "proximal_logprob");
  in.behavior_T = tensor(c["inputs"]["behave_logprob"]);
  // Without a rejection rule the reference applies no weight proximal / behave either.
  algo::Algorithm algorithm = algorithm_of(config, c["inputs"]["mask"]);
  const double low = config["eps_clip"];
  algorithm.clip = {low, config["eps_clip_higher"].is_null() ? low : config["eps_clip_higher"].get<double>(),
                 config["c_clip"].is_null() ? 0 : config["c_clip"].get<double>()};
  const algo::PolicyLoss seen = algo::policy_loss(in, algorithm);
  seen.loss.backward();
  Comparison comparison;
  comparison.equal("loss", {seen.loss.item<double>()}, {expected["loss"]});
  comparison.equal("grad_logprob", numbers(in.logprobs_T.grad()), numbers(expected["grad_logprob"]));
  comparison.tell(report, c["name"]);
}

void kl_case(const json& c, Report& report) {
  const json &config = c["config"], &in = c["inputs"], &expected = c["expected"];
  if (config.contains("weighted_by_importance_ratio")) return report.skip(c["name"], "importance-weighted KL is not built");
  const algo::LossScope scope = scope_of(in["mask"]);
  algo::Algorithm algorithm = algorithm_of(config, in["mask"]);
  algorithm.kl_estimator = algo::kl_estimator_of(config["estimator"]);
  algorithm.kl_coef = 1;
  const at::Tensor logprobs_T = tensor(in["logprob"]).requires_grad_(), reference_T = tensor(in["ref_logprob"]);
  const algo::KlPenalty seen = algo::kl_penalty(logprobs_T, reference_T, scope, algorithm);
  seen.loss.backward();
  Comparison comparison;
  comparison.equal("kl_per_token", numbers(algo::kl_estimate(logprobs_T, reference_T, algorithm.kl_estimator)),
                   numbers(expected["kl_per_token"]), numbers(in["mask"]));
  comparison.equal("kl_loss", {seen.loss.item<double>()}, {expected["kl_loss"]});
  comparison.equal("grad_logprob", numbers(logprobs_T.grad()), numbers(expected["grad_logprob"]));
  comparison.tell(report, c["name"]);
}

void entropy_case(const json& c, Report& report) {
  const json &in = c["inputs"], &expected = c["expected"];
  const algo::LossScope scope = scope_of(in["mask"]);
  const at::Tensor logits = tensor(in["logits"]).requires_grad_();
  const at::Tensor logits_TV = logits.view({scope.trainable_T.numel(), -1});
  const at::Tensor entropy_T = algo::token_entropy(logits_TV);
  const at::Tensor entropy = algo::aggregate(entropy_T, scope, algorithm_of(c["config"], in["mask"]));
  entropy.backward();
  Comparison comparison;
  comparison.equal("entropy_per_token", numbers(entropy_T), numbers(expected["entropy_per_token"]), numbers(in["mask"]));
  comparison.equal("entropy", {entropy.item<double>()}, {expected["entropy"]});
  comparison.equal("grad_logits", numbers(logits.grad()), numbers(expected["grad_logits"]));
  comparison.equal("logprob_of_label", numbers(algo::label_logprobs(logits_TV, tensor(in["labels"]).to(at::kLong))),
                   numbers(expected["logprob_of_label"]));
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
  Comparison comparison;
  comparison.equal("loss", {loss.item<double>() * scale}, {c["expected"]["loss"]});
  comparison.tell(report, c["name"]);
}

void literal_case(const json& c, Report& report) {
  if (c["name"] != "token_k1_integration") return report.skip(c["name"], "needs a correction or loss that is not built");
  // The unclipped loss of a token with advantage -1 is its ratio.
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
  Comparison comparison;
  comparison.equal("ratio", ratios, numbers(c["expected"]["ratio"]));
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
      {"group_advantages", advantages_case}, {"policy_loss", policy_loss_case}, {"decoupled_ppo", decoupled_case}, {"kl", kl_case},
      {"entropy", entropy_case},             {"aggregation", aggregation_case}, {"literal", literal_case}};
  const std::string stem = std::filesystem::path(file_name).stem().string();
  if (stem == "staleness") return run_staleness(file, file_name, report);
  const auto formula = formulas.find(stem);
  for (const json& c : cases_of(file, file_name)) {
    if (formula == formulas.end())
      report.skip(c.at("name"), stem + " is not built");
    else
      formula->second(c, report);
  }
}

}  // namespace tandem::cli
