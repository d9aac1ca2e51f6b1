// SPDX-License-Identifier: Apache-2.0
#include "tandem/algo/advantage.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/options.h"

namespace tandem::algo {
namespace {

constexpr double kWhitenEps = 1e-8;  // verl's, in the count of the tokens as in the variance
constexpr double kHuge = 1e100;

// The responses to one prompt.
struct Group {
  std::vector<double> scores;
  std::vector<double> lengths;  // trainable tokens of each

  double size() const { return static_cast<double>(scores.size()); }
  // A group of one has mean 0 and deviation 1, as with verl. Equal scores are their own mean, which a rounded sum would miss: what
  // teaches nothing has advantages of exactly 0.
  double mean() const {
    if (scores.size() < 2) return 0;
    if (alike()) return scores.front();
    const double factor = shrinks();
    return std::accumulate(scores.begin(), scores.end(), 0.0, [&](double sum, double s) { return sum + s * factor; }) / size() / factor;
  }
  bool alike() const { return std::ranges::adjacent_find(scores, std::not_equal_to<>()) == scores.end(); }
  double deviation() const {
    if (scores.size() < 2) return 1;
    const double factor = shrinks(), m = mean() * factor;
    double squares = 0;
    for (const double score : scores) squares += (score * factor - m) * (score * factor - m);
    return std::sqrt(squares / (size() - 1)) / factor;
  }
  double shrinks() const {
    return overflow_scale(std::abs(*std::ranges::max_element(scores, {}, [](double score) { return std::abs(score); })));
  }
};

// One response among the others of its prompt, and what the batch knows beside.
struct Response {
  const Group& group;
  size_t index;               // in its group
  double score;
  double per_nonzero;         // responses of the batch over those of them with a score that is not 0
};

// (s - mean) / (deviation + eps). Shao et al. 2024.
double grpo(const Response& r, const Algorithm& a) { return (r.score - r.group.mean()) / (r.group.deviation() + a.std_eps); }

// s - mean. Liu et al. 2025.
double dr_grpo(const Response& r, const Algorithm&) { return r.score - r.group.mean(); }

// s less the mean of the others. Ahmadian et al. 2024.
double rloo(const Response& r, const Algorithm&) {
  const double n = r.group.size();
  return n > 1 ? (r.score - r.group.mean()) * n / (n - 1) : r.score;
}

// s less the mean weighted by length, the baseline of least variance. Hao et al. 2025.
double opo(const Response& r, const Algorithm&) {
  if (r.group.scores.size() < 2) return r.score;
  if (r.group.alike()) return 0;
  const auto& [scores, lengths] = r.group;
  const double tokens = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  return r.score - std::inner_product(scores.begin(), scores.end(), lengths.begin(), 0.0) / tokens;
}

// (s - mean) times the responses over those with a score that is not 0. Chu et al. 2025.
double gpg(const Response& r, const Algorithm&) { return (r.score - r.group.mean()) * r.per_nonzero; }

// The best of a group alone gets (best - second) / (deviation + eps). Chen et al. 2025.
double grpo_passk(const Response& r, const Algorithm& a) {
  std::vector<double> sorted = r.group.scores;
  if (sorted.size() < 2) return 0;
  const auto best = std::max_element(sorted.begin(), sorted.end());
  if (best - sorted.begin() != static_cast<std::ptrdiff_t>(r.index)) return 0;
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return (r.score - sorted[1]) / (r.group.deviation() + a.std_eps);
}

// An estimator, its word in recipes, and its function; null for those that look at one response alone.
struct Estimator {
  Advantage value;
  const char* word;
  double (*per_response)(const Response&, const Algorithm&);
};
constexpr Estimator kEstimators[] = {
    {Advantage::kGrpo, "grpo", grpo},
    {Advantage::kDrGrpo, "dr_grpo", dr_grpo},
    {Advantage::kRloo, "rloo", rloo},
    {Advantage::kReinforcePp, "reinforce_pp", nullptr},
    {Advantage::kReinforcePpBaseline, "reinforce_pp_baseline", dr_grpo},  // and whitened. Hu et al. 2025
    {Advantage::kRemax, "remax", nullptr},
    {Advantage::kOpo, "opo", opo},
    {Advantage::kGpg, "gpg", gpg},
    {Advantage::kGrpoPassK, "grpo_passk", grpo_passk},
    {Advantage::kGae, "gae", nullptr},
    {Advantage::kDistillation, "distillation", nullptr},
};

bool is_trainable(std::span<const uint8_t> trainable_T, size_t t) { return trainable_T.empty() || trainable_T[t]; }

// Trainable tokens from the last to the first.
template <class Visit>
void backwards(const ResponseTokens& tokens, const Visit& visit) {
  for (size_t t = tokens.rewards_T.size(); t-- > 0;)
    if (is_trainable(tokens.trainable_T, t)) visit(t);
}

// Rewards to go, discounted (REINFORCE++, Hu et al. 2025), and what is added to each.
std::vector<double> to_go(const ResponseTokens& tokens, double gamma, double added) {
  std::vector<double> out_T(tokens.rewards_T.size());
  double sum = 0;
  backwards(tokens, [&](size_t t) { out_T[t] = (sum = tokens.rewards_T[t] + gamma * sum) + added; });
  return out_T;
}

// Generalised advantage estimation. Schulman et al. 2016.
TokenAdvantages gae(const ResponseTokens& tokens, const Algorithm& a) {
  TANDEM_CHECK(tokens.values_T.size() == tokens.rewards_T.size(), "GAE needs the critic's values");
  TokenAdvantages out = {std::vector<double>(tokens.rewards_T.size()), std::vector<double>(tokens.rewards_T.size())};
  double next_value = tokens.value_after, advantage = 0;
  backwards(tokens, [&](size_t t) {
    const double delta = tokens.rewards_T[t] + a.gamma * next_value - tokens.values_T[t];
    out.advantages_T[t] = advantage = delta + a.gamma * a.lambda * advantage;
    out.returns_T[t] = advantage + tokens.values_T[t];
    next_value = tokens.values_T[t];
  });
  return out;
}

}  // namespace

std::vector<std::string> advantage_names() {
  std::vector<std::string> names;
  for (const Estimator& e : kEstimators) names.emplace_back(e.word);
  return names;
}

Advantage advantage_of(const std::string& word) {
  for (const Estimator& e : kEstimators)
    if (e.word == word) return e.value;
  throw UserError("algo.advantage", "unknown word '" + word + "'", "did you mean '" + nearest_name(word, advantage_names()) + "'");
}

std::vector<double> compare_responses(const Responses& responses, const Algorithm& algorithm) {
  const size_t count = responses.scores.size();
  std::vector<double> out(count);
  if (algorithm.advantage == Advantage::kRemax) {  // Li et al. 2023
    TANDEM_CHECK(responses.greedy_scores.size() == count, "ReMax needs the score of a greedy answer for each response");
    std::transform(responses.greedy_scores.begin(), responses.greedy_scores.end(), out.begin(), std::negate<>());
  }
  const auto estimate = std::ranges::find(kEstimators, algorithm.advantage, &Estimator::value)->per_response;
  if (!estimate) return out;

  TANDEM_CHECK(responses.groups.size() == count, responses.groups.size(), " groups for ", count, " responses");
  TANDEM_CHECK(responses.lengths.size() == count, responses.lengths.size(), " lengths for ", count, " responses");
  std::unordered_map<int64_t, Group> groups;
  std::vector<size_t> index(count);
  double nonzero = 0;
  for (size_t r = 0; r < count; ++r) {
    Group& group = groups[responses.groups[r]];
    index[r] = group.scores.size();
    group.scores.push_back(responses.scores[r]);
    group.lengths.push_back(static_cast<double>(responses.lengths[r]));
    nonzero += responses.scores[r] != 0;
  }
  const auto per_nonzero = static_cast<float>(static_cast<double>(count) / std::max(nonzero, 1.0));  // fp32 as in verl
  for (size_t r = 0; r < count; ++r)
    out[r] = estimate({groups[responses.groups[r]], index[r], responses.scores[r], per_nonzero}, algorithm);
  return out;
}

TokenAdvantages token_advantages(const ResponseTokens& tokens, double compared, const Algorithm& algorithm) {
  TANDEM_CHECK(tokens.trainable_T.empty() || tokens.trainable_T.size() == tokens.rewards_T.size(), tokens.trainable_T.size(), " marks for ",
               tokens.rewards_T.size(), " tokens");
  switch (algorithm.advantage) {
    case Advantage::kGae: return gae(tokens, algorithm);
    case Advantage::kDistillation: return {{tokens.rewards_T.begin(), tokens.rewards_T.end()}, {}};  // on-policy distillation
    case Advantage::kReinforcePp: return {to_go(tokens, algorithm.gamma, 0), {}};
    case Advantage::kRemax: return {to_go(tokens, 1, compared), {}};
    default: break;
  }
  TokenAdvantages out = {std::vector<double>(tokens.rewards_T.size()), {}};
  backwards(tokens, [&](size_t t) { out.advantages_T[t] = compared; });
  return out;
}

double overflow_scale(double largest) { return largest > kHuge ? std::ldexp(1.0, -std::ilogb(largest)) : 1; }

double whiten(std::span<const WhitenedTokens> batch, double least) {
  const auto each = [&](const auto& visit) {
    for (const WhitenedTokens& one : batch)
      for (size_t t = 0; t < one.advantages_T.size(); ++t)
        if (is_trainable(one.trainable_T, t)) visit(one.advantages_T[t]);
  };
  double count = 0, largest = 0;
  each([&](double value) { count += 1, largest = std::max(largest, std::abs(value)); });
  if (count == 0) return 0;
  // verl's form: the count has an epsilon, and the unbiased factor comes last.
  const double factor = overflow_scale(largest);
  double sum = 0, squares = 0;
  each([&](double value) { sum += value * factor; });
  const double mean = sum / (count + kWhitenEps);
  each([&](double value) { squares += (value * factor - mean) * (value * factor - mean); });
  const double variance = squares / (count + kWhitenEps) * (count > 1 ? count / (count - 1) : 1);
  const double deviation = std::max(std::sqrt(variance + kWhitenEps * factor * factor), least * factor);
  each([&](double& value) { value = (value * factor - mean) / deviation; });
  return std::sqrt(variance) / factor;
}

}  // namespace tandem::algo
