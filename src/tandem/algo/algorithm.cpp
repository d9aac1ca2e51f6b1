// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/algorithm.h"

#include <algorithm>
#include <utility>

#include "tandem/algo/advantage.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::algo {
namespace {

// Truncated weights alone let bad tokens of old samples be pushed down without end: docs/algorithms.md has the curves.
constexpr double kAutoOffPolicyDelta = 0.1;

template <class Value>
using Word = std::pair<const char*, Value>;

constexpr Word<Surrogate> kSurrogates[] = {{"clip", Surrogate::kClip},
                                           {"gspo", Surrogate::kGspo},
                                           {"cispo", Surrogate::kCispo},
                                           {"sapo", Surrogate::kSapo},
                                           {"gmpo", Surrogate::kGmpo}};
constexpr Word<KlEstimator> kKlEstimators[] = {{"k1", KlEstimator::kK1},          {"abs", KlEstimator::kAbs},
                                               {"k2", KlEstimator::kK2},          {"k3", KlEstimator::kK3},
                                               {"k1+", KlEstimator::kK1Straight}, {"k3+", KlEstimator::kK3Straight}};
constexpr Word<Aggregation> kAggregations[] = {{"token-mean", Aggregation::kTokenMean},
                                               {"token-sum", Aggregation::kTokenSum},
                                               {"seq-mean-token-mean", Aggregation::kSequenceMeanTokenMean},
                                               {"seq-mean-token-sum", Aggregation::kSequenceMeanTokenSum},
                                               {"seq-mean-token-sum-norm", Aggregation::kSequenceMeanTokenSumNorm}};
constexpr Word<WeightLevel> kWeightLevels[] = {{"none", WeightLevel::kNone},
                                               {"token", WeightLevel::kToken},
                                               {"sequence", WeightLevel::kSequence},
                                               {"sequence_mean", WeightLevel::kSequenceMean}};
constexpr Word<Outside> kOutsides[] = {{"truncate", Outside::kTruncate}, {"zero", Outside::kZero}};

std::vector<std::string> names_of(const auto& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.emplace_back(name);
  return names;
}

auto value_of(const auto& words, const std::string& wanted, const char* where) {
  for (const auto& [name, value] : words)
    if (name == wanted) return value;
  std::string all;
  for (const std::string& name : names_of(words)) all += " " + name;
  throw UserError(where, "unknown word '" + wanted + "'",
                  "did you mean '" + nearest_name(wanted, names_of(words)) + "'; expected one of" + all);
}

OptionCheck word_or_function(std::vector<std::string> words) {
  words.emplace_back("FILE.py:FUNCTION");
  return [word = one_of(std::move(words))](const OptionValue& value) -> std::string {
    return names_function(**std::get_if<std::string*>(&value)) ? "" : word(value);
  };
}

// What auto of algo.whiten means. ReMax is whitened here, and not at its source: greedy answers score above samples, so that nearly all its
// advantages are negative, and what is only pushed down drifts (docs/algorithms.md).
bool is_whitened(Advantage advantage) {
  using enum Advantage;
  return advantage == kReinforcePp || advantage == kReinforcePpBaseline || advantage == kGae || advantage == kRemax;
}

std::vector<Word<Options>> algorithms() {
  // DeepSeekMath (Shao et al. 2024), without the KL term, and with the mean over all tokens of the step. Later work settled on
  // both.
  const Options grpo = {.aggregation = "token-mean"};
  // Yu et al. 2025: raised upper clip, mean over tokens of the whole batch, dynamic sampling.
  Options dapo = {.name = "dapo", .clip_high = 0.28, .clip_dual = 10, .filter_groups = true, .aggregation = "token-mean"};
  // Liu et al. 2025: no division by the deviation, none by a response's own length.
  Options dr_grpo = {.name = "dr_grpo", .advantage = "dr_grpo", .aggregation = "seq-mean-token-sum-norm"};
  // The others change what their papers change: the first block the advantage, the second the loss.
  const auto with_advantage = [&](const char* name) {
    Options o = grpo;
    o.name = o.advantage = name;
    return o;
  };
  const auto with_loss = [&](const char* name, double low, double high, const char* aggregation) {
    Options o = grpo;
    o.name = o.loss = name;
    o.clip_low = low, o.clip_high = high, o.aggregation = aggregation;
    return o;
  };
  std::vector<Word<Options>> all = {{"grpo", grpo}, {"dapo", dapo}, {"dr_grpo", dr_grpo}};
  for (const char* name : {"rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "opo", "gpg", "grpo_passk"})
    all.emplace_back(name, with_advantage(name));
  Options ppo = with_advantage("gae");  // Schulman et al. 2017; gamma and lambda 1, as verl and OpenRLHF have them for language
  ppo.name = "ppo";
  all.emplace_back("ppo", ppo);
  all.emplace_back("distillation", with_advantage("distillation"));
  all.emplace_back("gspo", with_loss("gspo", 3e-4, 4e-4, "seq-mean-token-mean"));  // Zheng et al. 2025
  all.emplace_back("cispo", with_loss("cispo", 1, 4, "token-mean"));               // MiniMax-M1: no lower bound, a far upper one
  all.emplace_back("sapo", with_loss("sapo", 0.2, 0.2, "seq-mean-token-mean"));    // Gao et al. 2025; it has no clip range
  all.emplace_back("gmpo", with_loss("gmpo", 0.4, 0.4, "seq-mean-token-mean"));    // Zhao et al. 2025; its mean is over sequences
  return all;
}

}  // namespace

void describe(OptionVisitor& field, Options& o) {
  field("name", o.name, "Published algorithm whose settings are the defaults of this section.", one_of(algorithm_names()));
  field("advantage", o.advantage,
        "How scores become advantages (docs/algorithms.md). Scores are compared within a group; reinforce_pp compares the whole batch; "
        "remax compares with the greedy answer to the prompt, gae with a critic's values; distillation asks a teacher, "
        "model.ref_model_load_path, in place of the scores. A function of yours in Python: docs/python.md.",
        word_or_function(advantage_names()));
  field("gamma", o.gamma, "reinforce_pp, gae: discount of a reward per token.", between(0, 1));
  field("lambda", o.lambda, "gae: 1 compares the rewards to go with a value; below, later values stand in for later rewards.",
        between(0, 1));
  field("whiten", o.whiten,
        "Advantages get mean 0 and variance 1 over the tokens of the batch. auto: those of reinforce_pp, reinforce_pp_baseline, gae and "
        "remax.",
        one_of({"auto", "on", "off"}));
  field("whiten_floor", o.whiten_floor,
        "Whitening divides by at least this share of the median deviation of the last 64 batches, and a millionth of the largest value, so "
        "that a batch with hardly any spread is not blown up; 0 is off, as in verl. actor/advantage_std is the deviation before.",
        between(0, 1));
  field("loss", o.loss,
        "Loss of a token from its ratio and its advantage (docs/algorithms.md), or a function of yours in Python (docs/python.md).",
        word_or_function(names_of(kSurrogates)));
  field("clip_low", o.clip_low, "The probability ratio counts down to 1 - clip_low; gmpo: its logarithm to -clip_low.", between(0, 1));
  field("clip_high", o.clip_high, "The probability ratio counts up to 1 + clip_high; gmpo: its logarithm to clip_high.", at_least(0));
  field("clip_dual", o.clip_dual, "Loss clip: with a negative advantage A it is at most -A times this; 0 is off.", at_least(0));
  field("sapo_tau_positive", o.sapo_tau_positive, "sapo: how sharp the gate is where the advantage is positive.", above(0));
  field("sapo_tau_negative", o.sapo_tau_negative, "sapo: how sharp the gate is where it is not.", above(0));
  field("kl_coef", o.kl_coef, "Weight of the KL term against the reference model; 0 needs no reference.", at_least(0));
  field("kl_in_reward", o.kl_in_reward,
        "The KL term is a reward of each token, that of the policy before the update, in place of a term of the loss.");
  field("kl_target", o.kl_target,
        "Adaptive KL: kl_coef is where the weight begins, and each step moves it towards this KL (Ziegler et al. 2019); 0 is off.",
        at_least(0));
  field("kl_horizon", o.kl_horizon, "Adaptive KL: samples over which the weight may change by a fifth.", above(0));
  field("kl_estimator", o.kl_estimator, "Estimator of the KL term; + takes the gradient of k2.", one_of(names_of(kKlEstimators)));
  field("kl_cut", o.kl_cut,
        "k3: a token's estimate counts at most this, and has no gradient there, as verl cuts it at 10; 0 is off: far from the reference "
        "the estimate and its pull go on growing.",
        at_least(0));
  field("kl_weighted", o.kl_weighted, "Multiplies the KL estimate by current / sampling policy, which makes up for older samples.");
  field("entropy_coef", o.entropy_coef,
        "The loss takes off so much of the entropy of the policy, averaged as the loss is: it keeps the policy from settling early.",
        at_least(0));
  field("correction", o.correction,
        "Importance weight old / sampling policy: of each token, of its sequence, or that one's geometric mean. auto: token where the two "
        "are known to differ (several updates, bfloat16, another rollout.dtype, experts without routing_replay), for samples of older "
        "weights with off_policy_delta 0.1, else none. A run writes what auto came to into its config.yaml.",
        one_of({"auto", "none", "token", "sequence", "sequence_mean"}));
  field("correction_outside", o.correction_outside, "A weight outside its bounds becomes the bound (TIS), or 0 (IcePop).",
        one_of(names_of(kOutsides)));
  field("correction_lower", o.correction_lower, "Lower bound of the weight.", at_least(0));
  field("correction_upper", o.correction_upper, "Upper bound of the weight.", above(0));
  field("correction_normalize", o.correction_normalize,
        "Divides the weights by their mean over an update's tokens (sequence levels: its responses). It costs a pass for old.");
  field("rejection", o.rejection,
        "Rules that leave tokens out, by how far old and sampling policy are apart: token, seq_sum, seq_mean or seq_max, then _k1, _k2 "
        "or _k3; several between commas.");
  field("rejection_bounds", o.rejection_bounds, "A bound for each rule, between commas; k1 may have two ratios, as in 0.5_2.0.");
  field("off_policy_delta", o.off_policy_delta,
        "Leaves out tokens with a negative advantage where a response's mean log ratio of sampling to current policy is above it. 0: off; "
        "where correction auto corrects for samples of older weights, 0 stands for 0.1.",
        at_least(0));
  field("mask_truncated", o.mask_truncated, "Responses cut at the length limit are compared with the others, but not trained on.");
  field("filter_groups", o.filter_groups,
        "Dynamic sampling: a group whose scores are all alike teaches nothing and is replaced, until a batch has only groups with spread.");
  field("max_filter_rounds", o.max_filter_rounds,
        "filter_groups: once so many batches' worth of groups were replaced for one batch, the run ends, saved.", at_least(1));
  field("mini_batches", o.mini_batches, "Optimizer updates in one pass over a batch: its groups in order, cut into so many parts.",
        at_least(1));
  field("epochs", o.epochs,
        "Passes over a batch. With several updates old log-probabilities are computed before the first, unless they are the rollout's.",
        at_least(1));
  field("max_kl", o.max_kl,
        "No further update on a batch once a mini-batch's KL of old against the current policy, the mean of r - 1 - log r, is above this; "
        "0 is off.",
        at_least(0));
  field("aggregation", o.aggregation, "What the loss is a mean of, over the whole step.", one_of(names_of(kAggregations)));
  field("scale_tokens", o.scale_tokens, "Tokens by which seq-mean-token-sum-norm divides, usually the longest response.", above(0));
}

bool names_function(const std::string& value) {
  const size_t at = value.rfind(".py:");
  return at != std::string::npos && at > 0 && at + 4 < value.size();
}

std::vector<std::string> algorithm_names() { return names_of(algorithms()); }
Options named_algorithm(const std::string& name) {
  const auto check_no_word_of = [&](const char* option, const std::vector<std::string>& words) {
    if (std::ranges::count(words, name) > 0)
      throw UserError("algo.name", "'" + name + "' is a word of " + option, join_text("--set ", option, "=", name));
  };
  if (std::ranges::count(algorithm_names(), name) == 0) {
    check_no_word_of("algo.advantage", advantage_names());
    check_no_word_of("algo.loss", names_of(kSurrogates));
  }
  return value_of(algorithms(), name, "algo.name");
}

Options resolved_correction(Options o, Corrects how) {
  if (o.correction != "auto") return o;
  o.correction = how == Corrects::kNot ? "none" : "token";
  const bool masks = how == Corrects::kByWeightsAndMask && o.loss != "gmpo";  // no token of gmpo can be left out
  if (masks && o.off_policy_delta == 0) o.off_policy_delta = kAutoOffPolicyDelta;
  return o;
}

Algorithm algorithm_of(const Options& given) {
  const Options o = resolved_correction(given, Corrects::kNot);
  Algorithm algorithm;
  algorithm.advantage = names_function(o.advantage) ? Advantage::kGrpo : advantage_of(o.advantage);
  algorithm.gamma = o.gamma;
  algorithm.lambda = o.lambda;
  algorithm.whitens = o.whiten == "on" || (o.whiten == "auto" && is_whitened(algorithm.advantage));
  algorithm.whiten_floor = o.whiten_floor;
  algorithm.surrogate = names_function(o.loss) ? Surrogate::kClip : value_of(kSurrogates, o.loss, "algo.loss");
  algorithm.sapo = {o.sapo_tau_positive, o.sapo_tau_negative};
  if (o.clip_dual > 0 && o.clip_dual <= 1)
    throw UserError("algo.clip_dual", join_text("is ", o.clip_dual, ", which takes the gradient of fresh samples away"), "above 1, or 0");
  algorithm.clip = {o.clip_low, o.clip_high, o.clip_dual};
  algorithm.kl_coef = o.kl_coef;
  algorithm.kl_in_reward = o.kl_in_reward;
  algorithm.kl_estimator = value_of(kKlEstimators, o.kl_estimator, "algo.kl_estimator");
  algorithm.kl_cut = o.kl_cut;
  algorithm.kl_weighted = o.kl_weighted;
  algorithm.entropy_coef = o.entropy_coef;
  algorithm.correction = {.level = value_of(kWeightLevels, o.correction, "algo.correction"),
                          .outside = value_of(kOutsides, o.correction_outside, "algo.correction_outside")};
  if (algorithm.correction.level != WeightLevel::kNone) {
    algorithm.correction.lower = o.correction_lower, algorithm.correction.upper = o.correction_upper;
    algorithm.correction.normalize = o.correction_normalize;
    if (o.correction_lower > o.correction_upper)
      throw UserError("algo.correction_lower", "it is above algo.correction_upper", "at most the upper bound");
  }
  algorithm.correction.rejections = rejections_of(o.rejection, o.rejection_bounds, "algo.rejection");
  algorithm.off_policy_delta = o.off_policy_delta;
  algorithm.mask_truncated = o.mask_truncated;
  algorithm.updates = {o.mini_batches, o.epochs, o.max_kl};
  algorithm.aggregation = value_of(kAggregations, o.aggregation, "algo.aggregation");
  algorithm.scale_tokens = o.scale_tokens;
  return algorithm;
}

void check_words(const Options& options) { (void)algorithm_of(options); }

}  // namespace tandem::algo
