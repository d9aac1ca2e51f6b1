// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/expert/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/model/kernel/step.h"

namespace tandem::model::kernel {
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
void loss_backward(const RouterLoss& loss, const TokenScores& token, const RouterShape& shape, float* d_logits, double* sums) {
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

struct RouteStep final : Step {
  const Gemm* gemm = nullptr;
  at::Tensor grad;
  RouterShape shape{};
  RouterLoss loss;
  void add_losses(const at::Tensor& logits, const at::Tensor& scores, at::Tensor& d_logits) const {
    const int64_t T = logits.size(0), E = shape.num_experts;
    const bool* counted = pointer<bool>(loss.counted_T);
    std::vector<std::array<double, 2>> sums(static_cast<size_t>(T));  // one for each token, so that their order is fixed
    for_rows(T, E, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        if (!counted || counted[t])
          loss_backward(loss, {logits.data_ptr<float>() + t * E, scores.data_ptr<float>() + t * E}, shape,
                        d_logits.data_ptr<float>() + t * E, sums[static_cast<size_t>(t)].data());
    });
    for (const auto& [z, balance] : sums) *loss.z_sum += z, *loss.balance_sum += balance;
  }
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d = grad_of(grads, 0);
    const at::Tensor &x = saved[0], &weight = saved[1], &scores = saved[2], &chosen = saved[3];
    const int64_t T = x.size(0), E = shape.num_experts, k = shape.experts_per_token;
    at::Tensor d_logits = at::empty({T, E}, at::kFloat), dx = at::empty_like(x);
    for_rows(T, E, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        score_backward(scores.data_ptr<float>() + t * E, chosen.data_ptr<int64_t>() + t * k, d.data_ptr<float>() + t * k, shape,
                       d_logits.data_ptr<float>() + t * E);
    });
    if (loss.any()) add_losses(saved[4], scores, d_logits);
    d_logits = d_logits.to(x.scalar_type());
    if (grad.defined()) gemm->weight_grad(grad, d_logits, x);
    gemm->input_grad(dx, d_logits, weight);
    return {dx};
  }
};

}  // namespace

Routing route(const Gemm& gemm, const at::Tensor& x, const Router& router, const at::Tensor& chosen) {
  const RouterShape& shape = router.shape;
  const int64_t T = x.size(0), E = shape.num_experts, k = shape.experts_per_token;
  at::Tensor logits = at::empty({T, E}, at::kFloat);
  gemm.forward_float(logits, x.detach(), router.weight_EH.value);
  const at::Tensor bias = router.bias_E.defined() ? router.bias_E.to(at::kFloat) : at::Tensor();
  Routing routing{chosen.defined() ? chosen : at::empty({T, k}, at::kLong), at::empty({T, k}, at::kFloat)};
  const bool differentiable = recording({x});
  const at::Tensor kept = differentiable && router.loss.any() ? logits.clone() : at::Tensor();
  float* scores = logits.data_ptr<float>();
  for_rows(T, E, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = scores + t * E;
      int64_t* best = routing.experts_Tk.data_ptr<int64_t>() + t * k;
      score_row(row, shape, row);
      if (!chosen.defined()) choose_row(row, pointer<float>(bias), shape, best);
      else check_chosen(best, shape);
      const float total = total_of(row, best, shape);
      for (int64_t i = 0; i < k; ++i) routing.weights_Tk.data_ptr<float>()[t * k + i] = row[best[i]] / total * shape.scaling;
    }
  });
  if (differentiable) {
    auto step = make_step<RouteStep>({x});
    step->gemm = &gemm;
    step->grad = router.weight_EH.grad;
    step->shape = shape;
    step->loss = router.loss;
    step->saved = {x.detach(), router.weight_EH.value, logits, routing.experts_Tk};
    if (kept.defined()) step->saved.push_back(kept);
    attach(routing.weights_Tk, step);
  }
  return routing;
}

}  // namespace tandem::model::kernel
