// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/stage/advantages.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tandem/algo/advantage.h"
#include "tandem/algo/policy_loss.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"

namespace tandem::runtime {

bool is_trainable(const data::Sample& sample, const Roles& roles) {
  return !(roles.algorithm.mask_truncated && sample.finish == data::FinishReason::kLength);
}

void share_rows(const StepData& step, const Roles& roles, TokenValues mine, TokenValues& all) {
  all.assign(step.rows.size(), {});
  for (size_t i = 0; i < step.mine.size(); ++i) all[step.mine[i]] = std::move(mine[i]);
  comm::exchange_rows(roles.parts.ranks.side(), all, roles.parts.ranks.speaks_for_train());
}

namespace {

// What compare_responses reads of the samples of a batch, which every rank has.
struct Scored {
  std::vector<double> scores, greedy_scores;
  std::vector<int64_t> groups, tokens;
  std::vector<int64_t> lengths, trainable;  // tokens that the policy chose; those of them that are trained on
  std::vector<bool> cut;  // at the length limit
  // Of the tokens: 0 for one that the policy did not choose; empty where it chose all. Of rows of this rank alone, until share_marks.
  std::vector<std::vector<uint8_t>> marks;
};

// As advantages see it. Errors: UserError for a score that is no finite number.
double shaped_score(const data::Sample& sample, data::GroupId group, const Roles& roles) {
  if (!std::isfinite(sample.score))
    throw UserError("reward", join_text("the score of a sample of group ", value(group), " is ", sample.score), "a finite number");
  return roles.parts.config.reward.shaping().of(sample.score);
}

// Errors: UserError if there is none, as in samples of a run under another algorithm.
double greedy_score(const data::Group& group, const Roles& roles) {
  if (!group.greedy)
    throw UserError("algo.advantage", join_text("is remax, and group ", value(group.id), " came without the score of a greedy answer"),
                    "samples that were rolled out under remax");
  return shaped_score(*group.greedy, group.id, roles);
}

// Errors: as shaped_score and greedy_score.
Scored scored(const StepData& step, const Roles& roles) {
  Scored out;
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      out.scores.push_back(shaped_score(sample, group.id, roles));
      if (roles.algorithm.advantage == algo::Advantage::kRemax) out.greedy_scores.push_back(greedy_score(group, roles));
      out.groups.push_back(value(group.id));
      out.tokens.push_back(roles.bodies.num_tokens(sample.id));
      out.lengths.push_back(roles.bodies.facts(sample.id).num_trainable);
      std::vector<uint8_t>& marks = out.marks.emplace_back();
      if (std::ranges::binary_search(step.mine, out.marks.size() - 1))
        if (const auto of_body = roles.bodies.body(sample.id).trainable; out.lengths.back() < out.tokens.back())
          marks.assign(of_body.begin(), of_body.end());
      out.trainable.push_back(is_trainable(sample, roles) ? out.lengths.back() : 0);
      out.cut.push_back(sample.finish == data::FinishReason::kLength);
    }
  return out;
}

// Of one response whose tokens a policy gives these log-probabilities.
at::Tensor kl_of_tokens(const train::Row& row, std::span<const float> logprobs, algo::KlEstimator estimator, double cut) {
  const auto tensor = [](std::span<const float> values) {
    return at::from_blob(const_cast<float*>(values.data()), {std::ssize(values)}, at::kFloat);
  };
  return algo::kl_estimate(tensor(logprobs), tensor(row.reference), estimator, cut).contiguous();
}

// What each token is rewarded with beside its response's score: -kl_coef KL(policy || reference), or a teacher's log-probability less the
// policy's. That is the policy before the update; the rollout's own values stand for it where no stage computed them. Tells the mean KL of
// the responses.
std::vector<std::vector<float>> token_rewards(StepData& step, const Roles& roles, const Scored& batch) {
  const algo::Algorithm& algorithm = roles.algorithm;
  const bool distills = algorithm.advantage == algo::Advantage::kDistillation;
  const auto weight = static_cast<float>(distills ? -1 : -algorithm.kl_coef);
  std::vector<std::vector<float>> mine, all;
  for (size_t i = 0; i < step.mine.size(); ++i) {
    const train::Row& row = step.rows[step.mine[i]];
    std::vector<float>& rewards = mine.emplace_back();
    if (row.reference.empty()) continue;  // not the last pipeline stage
    const std::span<const float> logprobs = step.logprobs_before.empty() ? row.behavior : std::span<const float>(step.logprobs_before[i]);
    const at::Tensor kl_T = kl_of_tokens(row, logprobs, distills ? algo::KlEstimator::kK1 : algorithm.kl_estimator, algorithm.kl_cut);
    rewards.assign(kl_T.data_ptr<float>(), kl_T.data_ptr<float>() + kl_T.numel());
    for (size_t t = 0; t < rewards.size(); ++t)
      if (!row.is_sampled(t)) rewards[t] = 0;
  }
  share_rows(step, roles, std::move(mine), all);
  double kl = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    kl += std::accumulate(all[i].begin(), all[i].end(), 0.0) / static_cast<double>(std::max<int64_t>(batch.lengths[i], 1));
    for (float& reward : all[i]) reward *= weight;
  }
  step.kl_reference = kl / static_cast<double>(all.size());
  return all;
}

// What a response compares to is the advantage of each of its tokens, unless these differ.
bool differs_by_token(const algo::Algorithm& algorithm) {
  return algorithm.whitens || algorithm.rewards_tokens() || algorithm.advantage == algo::Advantage::kRemax;
}

// Marks of the rows of all ranks, where advantages differ by token: those of a batch are whitened together.
void share_marks(const StepData& step, const Roles& roles, Scored& batch) {
  if (batch.lengths == batch.tokens || !differs_by_token(roles.algorithm)) return;
  TokenValues mine, all;
  for (const size_t i : step.mine) mine.emplace_back(batch.marks[i].begin(), batch.marks[i].end());
  share_rows(step, roles, std::move(mine), all);
  for (size_t i = 0; i < all.size(); ++i) batch.marks[i].assign(all[i].begin(), all[i].end());
}

// By sample, where `compared` has what its response compares to; of others' rows only where these differ by token.
std::vector<algo::TokenAdvantages> token_advantages(const StepData& step, const Roles& roles, const Scored& batch,
                                                    const std::vector<std::vector<float>>& rewards, std::span<const double> compared) {
  std::vector<algo::TokenAdvantages> out(compared.size());
  for (size_t i = 0; i < compared.size(); ++i) {
    if (!differs_by_token(roles.algorithm) && !std::ranges::binary_search(step.mine, i)) continue;
    const std::vector<uint8_t>& marks = batch.marks[i];
    std::vector<double> rewards_T(static_cast<size_t>(batch.tokens[i])), values_T;
    if (!rewards.empty()) rewards_T.assign(rewards[i].begin(), rewards[i].end());
    // The score is of the last token that the policy chose.
    if (const auto last = std::find(marks.rbegin(), marks.rend(), 1); !rewards_T.empty())
      rewards_T[marks.empty() ? rewards_T.size() - 1 : static_cast<size_t>(marks.rend() - last) - 1] += batch.scores[i];
    double value_after = 0;
    if (!step.values.empty()) {
      const std::vector<float>& values = step.values[i];
      values_T.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rewards_T.size()));
      if (roles.parts.config.critic.bootstrap_truncated && batch.cut[i]) value_after = values.back();
    }
    out[i] = algo::token_advantages({rewards_T, marks, values_T, value_after}, compared[i], roles.algorithm);
  }
  return out;
}

// By the host's function on the first rank of those that train. Errors: UserError for what it throws, or another number of them than
// responses. The same on all ranks.
std::vector<double> host_advantages(const algo::Responses& responses, const Roles& roles) {
  comm::Group& ranks = roles.parts.ranks.side();
  std::vector<double> mine;
  std::optional<comm::Fault> fault;
  try {
    if (ranks.rank() == 0) mine = roles.hooks.advantage(responses);
  } catch (const std::exception& e) {
    fault = comm::Fault{exit_code_of(e), e.what()};
  }
  if (const auto first = comm::first_fault(ranks, fault)) throw UserError("the advantages", first->what, "");
  const std::vector<double> all = comm::values_of_all(ranks, mine);
  if (all.size() != responses.scores.size() || !std::ranges::all_of(all, [](double each) { return std::isfinite(each); }))
    throw UserError("the advantages", join_text("gave ", all.size(), " numbers, or one that is not finite"),
                    join_text("a finite number for each of ", responses.scores.size(), " responses"));
  return all;
}

// Over the trainable tokens of the batch; the others get 0. Where all are alike there is nothing to learn from: they become 0, and not what
// rounding leaves. Nor is a spread that is rounding, beside the values, blown up. Gives the deviation before.
double whiten(std::vector<algo::TokenAdvantages>& tokens, const Scored& batch, const algo::Algorithm& algorithm) {
  constexpr double kRounding = 1e-6;  // of the largest value, where whiten_floor is on: scores may have been of float32
  std::vector<algo::WhitenedTokens> all;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (batch.trainable[i] == 0) continue;
    const std::vector<uint8_t>& marks = batch.marks[i];
    all.push_back({tokens[i].advantages_T, marks});
    for (size_t t = 0; t < tokens[i].advantages_T.size(); ++t)
      if (const double advantage = tokens[i].advantages_T[t]; marks.empty() || marks[t])
        low = std::min(low, advantage), high = std::max(high, advantage);
  }
  for (size_t i = 0; i < tokens.size(); ++i)
    if (batch.trainable[i] == 0 || !(low < high)) std::ranges::fill(tokens[i].advantages_T, 0.0);
  if (!(low < high)) return 0;
  if (algorithm.whiten_floor == 0) return algo::whiten(all, 0);
  const double rounding = kRounding * std::max(std::abs(low), std::abs(high));
  return algo::whiten(all, std::max(rounding, algorithm.whiten_floor * algorithm.usual_deviation));
}

}  // namespace

void advantages(StepData& step, const Roles& roles) {
  const algo::Algorithm& algorithm = roles.algorithm;
  Scored batch = scored(step, roles);
  if (algorithm.advantage == algo::Advantage::kDistillation) std::ranges::fill(batch.scores, 0.0);
  std::vector<std::vector<float>> rewards;
  if (algorithm.rewards_tokens()) rewards = token_rewards(step, roles, batch);
  share_marks(step, roles, batch);
  // Responses are compared by all that they are rewarded with.
  std::vector<double> totals = batch.scores;
  for (size_t i = 0; i < rewards.size(); ++i) totals[i] = std::accumulate(rewards[i].begin(), rewards[i].end(), totals[i]);
  const algo::Responses responses{totals, batch.groups, batch.lengths, batch.greedy_scores};
  step.advantages = roles.hooks.advantage ? host_advantages(responses, roles) : algo::compare_responses(responses, algorithm);
  std::vector<algo::TokenAdvantages> tokens = token_advantages(step, roles, batch, rewards, step.advantages);
  if (algorithm.whitens) step.deviation = whiten(tokens, batch, algorithm);
  if (differs_by_token(algorithm))
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<double>& of_tokens = tokens[i].advantages_T;
      step.advantages[i] = std::accumulate(of_tokens.begin(), of_tokens.end(), 0.0) / static_cast<double>(batch.lengths[i]);
    }
  for (const size_t i : step.mine) {
    const auto too_large = [](double advantage) { return !std::isfinite(static_cast<float>(advantage)); };
    if (const auto at = std::ranges::find_if(tokens[i].advantages_T, too_large); at != tokens[i].advantages_T.end())
      throw UserError("reward", join_text("the score ", batch.scores[i], " gives an advantage of ", *at, ", and float32 ends at 3.4e38"),
                      "smaller scores, such as by reward.scale");
    step.rows[i].advantages.assign(tokens[i].advantages_T.begin(), tokens[i].advantages_T.end());
    step.rows[i].returns.assign(tokens[i].returns_T.begin(), tokens[i].returns_T.end());
  }
}

}  // namespace tandem::runtime
