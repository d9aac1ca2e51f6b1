// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/cpu.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/model/kernel/cpu/row_loop.h"

namespace tandem::model::kernel::cpu {
namespace {

void score_row(const float* logits, const RouterShape& shape, float* scores) {
  const int64_t E = shape.num_experts;
  if (shape.sigmoid) {
    for (int64_t e = 0; e < E; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  const float top = *std::max_element(logits, logits + E);
  float sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += scores[e] = std::exp(logits[e] - top);
  for (int64_t e = 0; e < E; ++e) scores[e] /= sum;
}

// Takes every expert out of `choice` that is not in one of the best groups.
void keep_groups(const RouterShape& shape, std::vector<float>& choice) {
  const int64_t size = shape.num_experts / shape.num_groups;
  std::vector<float> worth;
  std::vector<int64_t> order(static_cast<size_t>(shape.num_groups));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t g : order) {
    std::vector<float> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::partial_sort(members.begin(), members.begin() + 2, members.end(), std::greater<>());
    worth.push_back(members[0] + members[1]);
  }
  const auto better = [&](int64_t a, int64_t b) { return worth[static_cast<size_t>(a)] > worth[static_cast<size_t>(b)]; };
  std::stable_sort(order.begin(), order.end(), better);
  for (size_t i = static_cast<size_t>(shape.top_groups); i < order.size(); ++i)
    std::fill_n(choice.begin() + order[i] * size, size, -std::numeric_limits<float>::infinity());
}

void choose_row(const float* scores, const float* bias, const RouterShape& shape, int64_t* chosen) {
  std::vector<float> choice(scores, scores + shape.num_experts);
  for (size_t e = 0; bias && e < choice.size(); ++e) choice[e] += bias[e];
  if (shape.num_groups > 1) keep_groups(shape, choice);
  std::vector<int64_t> order(choice.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto better = [&](int64_t a, int64_t b) {
    const float x = choice[static_cast<size_t>(a)], y = choice[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + shape.experts_per_token, order.end(), better);
  std::copy_n(order.begin(), shape.experts_per_token, chosen);
}

void check_chosen(const int64_t* chosen, const RouterShape& shape) {
  for (int64_t i = 0; i < shape.experts_per_token; ++i)
    TANDEM_CHECK(chosen[i] >= 0 && chosen[i] < shape.num_experts, "a replayed token has expert ", chosen[i], " of ", shape.num_experts);
}

// What the chosen scores are divided by.
float total_of(const float* scores, const int64_t* chosen, const RouterShape& shape) {
  if (!shape.normalize) return 1.0f;
  float sum = shape.sigmoid ? 1e-20f : 0.0f;
  for (int64_t i = 0; i < shape.experts_per_token; ++i) sum += scores[chosen[i]];
  return sum;
}

// d_logits from the gradients of the chosen weights.
void score_backward(const float* scores, const int64_t* chosen, const float* d_weights, const RouterShape& shape, float* d_logits) {
  const int64_t E = shape.num_experts, k = shape.experts_per_token;
  const float total = total_of(scores, chosen, shape);
  float mixed = 0;  // sum of d_weight * weight, of weights that sum to 1
  for (int64_t i = 0; i < k && shape.normalize; ++i) mixed += d_weights[i] * scores[chosen[i]] / total;
  std::fill_n(d_logits, E, 0.0f);
  for (int64_t i = 0; i < k; ++i) d_logits[chosen[i]] = shape.scaling * (d_weights[i] - mixed) / total;  // of the scores, so far
  if (shape.sigmoid) {
    for (int64_t i = 0; i < k; ++i) d_logits[chosen[i]] *= scores[chosen[i]] * (1.0f - scores[chosen[i]]);
    return;
  }
  float dot = 0;
  for (int64_t i = 0; i < k; ++i) dot += d_logits[chosen[i]] * scores[chosen[i]];
  for (int64_t e = 0; e < E; ++e) d_logits[e] = scores[e] * (d_logits[e] - dot);
}

// Of the E experts.
struct TokenScores {
  const float *logits, *scores;
};

// Adds the losses' part to a token's d_logits; `sums` are those of z and of balance.
void loss_backward(const RouterLossTerms& loss, const TokenScores& token, const RouterShape& shape, float* d_logits, double* sums) {
  const auto& [logits, scores] = token;
  const int64_t E = shape.num_experts;
  const float top = *std::max_element(logits, logits + E);
  float total = 0;
  for (int64_t e = 0; e < E; ++e) total += std::exp(logits[e] - top);
  const float log_sum = top + std::log(total);
  sums[0] += static_cast<double>(log_sum) * log_sum;
  for (int64_t e = 0; e < E; ++e) d_logits[e] += 2 * loss.z * log_sum * std::exp(logits[e] - log_sum);
  if (loss.balance == 0) return;
  const float* load = loss.load_E.data_ptr<float>();
  const float sum = shape.sigmoid ? std::accumulate(scores, scores + E, 1e-20f) : 1.0f;
  float mean = 0;  // load of a token's experts, weighted by its shares
  for (int64_t e = 0; e < E; ++e) mean += load[e] * scores[e] / sum;
  sums[1] += static_cast<double>(mean);
  for (int64_t e = 0; e < E; ++e) {
    const float slope = shape.sigmoid ? scores[e] * (1.0f - scores[e]) / sum : scores[e];
    d_logits[e] += loss.balance * (load[e] - mean) * slope;
  }
}

Routed route(const at::Tensor& logits, const at::Tensor& bias, const RouterShape& shape, const at::Tensor& chosen) {
  const int64_t T = logits.size(0), E = shape.num_experts, k = shape.experts_per_token;
  const at::Tensor added = bias.defined() ? bias.to(at::kFloat) : at::Tensor();
  const Routed out{at::empty({T, E}, at::kFloat), chosen.defined() ? chosen : at::empty({T, k}, at::kLong), at::empty({T, k}, at::kFloat)};
  for_rows(T, E, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = out.scores_TE.data_ptr<float>() + t * E;
      int64_t* best = out.experts_Tk.data_ptr<int64_t>() + t * k;
      score_row(logits.data_ptr<float>() + t * E, shape, row);
      if (!chosen.defined()) choose_row(row, pointer<float>(added), shape, best);
      else check_chosen(best, shape);
      const float total = total_of(row, best, shape);
      for (int64_t i = 0; i < k; ++i) out.weights_Tk.data_ptr<float>()[t * k + i] = row[best[i]] / total * shape.scaling;
    }
  });
  return out;
}

void add_losses(const RouterGrad& in, const RouterShape& shape, const RouterLossTerms& loss, RouterLossSums& sums, at::Tensor& d_logits) {
  const int64_t T = in.logits_TE.size(0), E = shape.num_experts;
  const bool* counted = pointer<bool>(loss.counted_T);
  std::vector<std::array<double, 2>> of_token(static_cast<size_t>(T));  // one for each token, so that their order is fixed
  for_rows(T, E, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (!counted || counted[t])
        loss_backward(loss, {in.logits_TE.data_ptr<float>() + t * E, in.scores_TE.data_ptr<float>() + t * E}, shape,
                      d_logits.data_ptr<float>() + t * E, of_token[static_cast<size_t>(t)].data());
  });
  for (const auto& [z, balance] : of_token) sums.z += z, sums.balance += balance;
}

at::Tensor route_backward(const RouterGrad& in, const RouterShape& shape, const RouterLossTerms& loss, RouterLossSums& sums) {
  const int64_t T = in.scores_TE.size(0), E = shape.num_experts, k = shape.experts_per_token;
  at::Tensor d_logits = at::empty({T, E}, at::kFloat);
  for_rows(T, E, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      score_backward(in.scores_TE.data_ptr<float>() + t * E, in.experts_Tk.data_ptr<int64_t>() + t * k,
                     in.d_weights_Tk.data_ptr<float>() + t * k, shape, d_logits.data_ptr<float>() + t * E);
  });
  if (loss.any()) add_losses(in, shape, loss, sums, d_logits);
  return d_logits;
}

Sorted sort(const at::Tensor& experts, int64_t num_experts) {
  const int64_t N = experts.numel(), k = experts.size(1);
  const int64_t* chosen = experts.data_ptr<int64_t>();
  const auto expert_of = [&](int64_t i) { return static_cast<size_t>(chosen[i]); };
  Sorted out{{std::vector<int64_t>(static_cast<size_t>(num_experts) + 1)},
             at::empty({N}, at::kLong),
             at::empty({N}, at::kLong),
             at::empty({N}, at::kLong)};
  std::vector<int64_t>& offsets = out.rows.offsets;
  for (int64_t i = 0; i < N; ++i) ++offsets[expert_of(i) + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<int64_t> next = offsets;
  int64_t *choice = out.choice_S.data_ptr<int64_t>(), *token = out.token_S.data_ptr<int64_t>(), *row = out.row_N.data_ptr<int64_t>();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t r = next[expert_of(i)]++;
    choice[r] = i;
    token[r] = i / k;
    row[i] = r;
  }
  return out;
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& row_of, int64_t k) {
  const int64_t W = rows.size(1), T = row_of.numel() / k;
  const int64_t* row = row_of.data_ptr<int64_t>();
  at::Tensor out = at::empty({T, W}, rows.options());
  for_rows(T, W * k, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(W));
    by_dtype(rows, [&]<class E>(E) {
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t i = t * k; i < (t + 1) * k; ++i) row_table<E>().add_columns(pointer<E>(rows) + row[i] * W, W, sums.data());
        row_table<E>().from_float(sums.data(), W, pointer<E>(out) + t * W);
      }
    });
  });
  return out;
}

}  // namespace

const ExpertKernels kExpertKernels = {route, route_backward, sort, combine};

}  // namespace tandem::model::kernel::cpu
