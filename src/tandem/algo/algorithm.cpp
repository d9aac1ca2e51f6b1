// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/algorithm.h"

#include <utility>

#include "tandem/base/error.h"

namespace tandem::algo {
namespace {

template <class Value>
using Words = std::vector<std::pair<std::string, Value>>;

const Words<Advantage>& advantages() {
  static const Words<Advantage> words = {{"grpo", Advantage::kGrpo}, {"dr_grpo", Advantage::kDrGrpo}};
  return words;
}
const Words<KlEstimator>& kl_estimators() {
  static const Words<KlEstimator> words = {{"k1", KlEstimator::kK1}, {"abs", KlEstimator::kAbs},         {"k2", KlEstimator::kK2},
                                           {"k3", KlEstimator::kK3}, {"k1+", KlEstimator::kK1Straight}, {"k3+", KlEstimator::kK3Straight}};
  return words;
}
const Words<Aggregation>& aggregations() {
  static const Words<Aggregation> words = {{"token-mean", Aggregation::kTokenMean},
                                           {"token-sum", Aggregation::kTokenSum},
                                           {"seq-mean-token-mean", Aggregation::kSequenceMeanTokenMean},
                                           {"seq-mean-token-sum", Aggregation::kSequenceMeanTokenSum},
                                           {"seq-mean-token-sum-norm", Aggregation::kSequenceMeanTokenSumNorm}};
  return words;
}

template <class Value>
std::vector<std::string> names_of(const Words<Value>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  return names;
}

template <class Value>
Value value_of(const Words<Value>& words, const std::string& wanted, const char* where) {
  for (const auto& [name, value] : words)
    if (name == wanted) return value;
  throw UserError(where, "unknown word '" + wanted + "'", "did you mean '" + nearest_name(wanted, names_of(words)) + "'");
}

Words<Options> algorithms() {
  // DeepSeekMath (Shao et al. 2024), without the KL term, and with the mean over all tokens of the step. Later work settled on
  // both.
  const Options grpo = {.aggregation = "token-mean"};
  // Yu et al. 2025: raised upper clip, mean over tokens of the whole batch.
  Options dapo = {.name = "dapo", .clip_high = 0.28, .clip_dual = 10, .aggregation = "token-mean"};
  // Liu et al. 2025: no division by the deviation, none by a response's own length.
  Options dr_grpo = {.name = "dr_grpo", .advantage = "dr_grpo", .aggregation = "seq-mean-token-sum-norm"};
  return {{"grpo", grpo}, {"dapo", dapo}, {"dr_grpo", dr_grpo}};
}

}  // namespace

void describe(OptionVisitor& field, Options& o) {
  field("name", o.name, "Published algorithm whose settings are the defaults of this section.", one_of(algorithm_names()));
  field("advantage", o.advantage, "How scores of a group become advantages: grpo divides by the deviation, dr_grpo does not.",
        one_of(names_of(advantages())));
  field("clip_low", o.clip_low, "The probability ratio counts down to 1 - clip_low.", between(0, 1));
  field("clip_high", o.clip_high, "The probability ratio counts up to 1 + clip_high.", at_least(0));
  field("clip_dual", o.clip_dual, "With a negative advantage A the loss is at most -A times this; 0 is off.", at_least(0));
  field("kl_coef", o.kl_coef, "Weight of the KL term against the reference model; 0 needs no reference.", at_least(0));
  field("kl_estimator", o.kl_estimator, "Estimator of the KL term; + takes the gradient of k2.", one_of(names_of(kl_estimators())));
  field("aggregation", o.aggregation, "What the loss is a mean of, over the whole step.", one_of(names_of(aggregations())));
  field("scale_tokens", o.scale_tokens, "Tokens by which seq-mean-token-sum-norm divides, usually the longest response.", above(0));
}

std::vector<std::string> algorithm_names() { return names_of(algorithms()); }
Options named_algorithm(const std::string& name) { return value_of(algorithms(), name, "algo.name"); }
KlEstimator kl_estimator_of(const std::string& word) { return value_of(kl_estimators(), word, "algo.kl_estimator"); }
Aggregation aggregation_of(const std::string& word) { return value_of(aggregations(), word, "algo.aggregation"); }

Algorithm algorithm_of(const Options& o) {
  Algorithm algorithm;
  algorithm.advantage = value_of(advantages(), o.advantage, "algo.advantage");
  algorithm.clip = {o.clip_low, o.clip_high, o.clip_dual};
  algorithm.kl_coef = o.kl_coef;
  algorithm.kl_estimator = kl_estimator_of(o.kl_estimator);
  algorithm.aggregation = aggregation_of(o.aggregation);
  algorithm.scale_tokens = o.scale_tokens;
  return algorithm;
}

void check_words(const Options& options) { (void)algorithm_of(options); }

}  // namespace tandem::algo
