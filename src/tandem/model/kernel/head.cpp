// SPDX-License-Identifier: Apache-2.0
// The output head and the log-probability of given tokens. [rows, vocabulary] exists for one chunk of rows at a time.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/model/kernel/function.h"
#include "tandem/model/kernel/step.h"

namespace tandem::model::kernel {
namespace {

constexpr int64_t kChunkBytes = 16 << 20;  // of fp32 logits held at a time: what a cache may keep
constexpr int64_t kChunkRows = 4 * kParityRows;  // but so many rows: every chunk reads the weight, and adds to its whole gradient

int64_t chunk_rows(int64_t vocabulary) { return std::max(kChunkRows, kChunkBytes / 4 / vocabulary / kParityRows * kParityRows); }

// Runs body(logits, begin, rows) for each chunk of rows, in order.
template <class Body>
void for_chunks(const Gemm& gemm, const at::Tensor& hidden, const at::Tensor& weight, const Body& body) {
  const int64_t R = hidden.size(0), V = weight.size(0), step = std::min(chunk_rows(V), std::max<int64_t>(R, 1));
  at::Tensor buffer = at::empty({step, V}, hidden.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < R; begin += step) {
    const int64_t rows = std::min(step, R - begin);
    at::Tensor logits = buffer.narrow(0, 0, rows);
    gemm.forward_float(logits, hidden.narrow(0, begin, rows), weight);
    body(logits, begin, rows);
  }
}

struct HeadStep final : torch::autograd::Node {
  const Gemm* gemm = nullptr;
  HeadInput in;
  Parameter weight;
  std::vector<LogSoftmax> softmax_R;

  void release_variables() override {
    in.hidden_RH.reset();
    softmax_R.clear();
  }

  // One of them is undefined where the loss does not depend on it.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const auto contiguous = [](const at::Tensor& grad) { return grad.defined() ? grad.contiguous() : grad; };
    const at::Tensor d_logprobs = contiguous(grads[0]), d_entropy = contiguous(grads[1]), targets = in.targets_R;
    const auto of_row = [](const at::Tensor& grad, int64_t r) { return grad.defined() ? grad.data_ptr<float>()[r] : 0.0f; };
    const int64_t V = weight.value.size(0);
    at::Tensor d_hidden = at::empty_like(in.hidden_RH);
    for_chunks(*gemm, in.hidden_RH, weight.value, [&](const at::Tensor& logits, int64_t begin, int64_t n) {
      const bool is_float = in.hidden_RH.scalar_type() == at::kFloat;
      at::Tensor d_logits = is_float ? logits : at::empty({n, V}, in.hidden_RH.options());
      at::parallel_for(0, n, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t r = begin + i;
          const LogSoftmax& softmax = softmax_R[static_cast<size_t>(r)];
          const LogitGrad grad{of_row(d_logprobs, r) * softmax.inv_temperature, of_row(d_entropy, r) * softmax.inv_temperature,
                               targets.data_ptr<int64_t>()[r] - in.first_row};
          const float* row = logits.data_ptr<float>() + i * V;
          if (is_float) rows().f32.logit_grad(row, V, softmax, grad, d_logits.data_ptr<float>() + i * V);
          else rows().bf16.logit_grad(row, V, softmax, grad, static_cast<Half*>(d_logits.data_ptr()) + i * V);
        }
      });
      at::Tensor d_rows = d_hidden.narrow(0, begin, n);
      gemm->input_grad(d_rows, d_logits, weight.value);
      if (weight.grad.defined()) gemm->weight_grad(weight.grad, d_logits, in.hidden_RH.narrow(0, begin, n));
    });
    return {d_hidden};
  }
};

// All ranks' values for each of `rows` rows, [ranks][rows][4]; with one rank, its own.
at::Tensor gather_stats(const at::Tensor& mine, comm::Group* tp) {
  if (!tp || tp->size() == 1) return mine.unsqueeze(0);
  at::Tensor all = at::empty({tp->size(), mine.size(0), mine.size(1)}, mine.options());
  tp->all_gather(all, mine);
  return all;
}

struct ScoreStep final : Step {
  const Gemm* gemm = nullptr;
  Parameter weight;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor& hidden = saved[0];
    const at::Tensor d = grad_of(grads, 0).to(hidden.scalar_type());
    add_weight_grad(*gemm, weight, 0, d, hidden);
    at::Tensor d_hidden = at::empty_like(hidden);
    gemm->input_grad(d_hidden, d, weight.value);
    return {d_hidden};
  }
};

// Sums in a fixed order, a few side by side.
float dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  float total = 0;
  for (int64_t j = 0; j < kLanes; ++j) total += sums[j];
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

}  // namespace

// Few labels: no product of matrices is worth its call, and bfloat16 keeps all it can.
at::Tensor head_scores(const Gemm& gemm, const at::Tensor& hidden, const Parameter& weight) {
  const int64_t R = hidden.size(0), H = hidden.size(1), L = weight.value.size(0);
  const at::Tensor x = hidden.detach().to(at::kFloat), w = weight.value.to(at::kFloat);
  at::Tensor out = at::empty({R, L}, x.options());
  for_rows(R, L * H, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t l = 0; l < L; ++l) out.data_ptr<float>()[r * L + l] = dot(x.data_ptr<float>() + r * H, w.data_ptr<float>() + l * H, H);
  });
  if (recording({hidden})) {
    auto step = make_step<ScoreStep>({hidden});
    step->gemm = &gemm;
    step->weight = weight;
    step->saved = {hidden.detach()};
    attach(out, step);
  }
  return out;
}

LogSoftmax combine(std::span<const LogitStats> shards, float inv_temperature) {
  size_t top = 0;
  for (size_t s = 1; s < shards.size(); ++s)
    if (shards[s].max > shards[top].max) top = s;
  float rest = shards[top].rest, weighted = shards[top].weighted;
  for (size_t s = 0; s < shards.size(); ++s) {
    if (s == top) continue;
    const float below = (shards[s].max - shards[top].max) * inv_temperature, shrink = std::exp(below), sum = 1.0f + shards[s].rest;
    rest += sum * shrink;
    weighted += (shards[s].weighted + sum * below) * shrink;
  }
  const float log_sum = std::log1p(rest);
  return {inv_temperature, shards[top].max, log_sum, log_sum - weighted / (1.0f + rest)};
}

HeadOutput head_logprobs(const Gemm& gemm, const HeadInput& in, const Parameter& weight) {
  const int64_t R = in.hidden_RH.size(0), V = weight.value.size(0);
  const float inv_temperature = static_cast<float>(1.0 / in.temperature);
  const auto options = in.hidden_RH.options().dtype(at::kFloat).requires_grad(false);
  at::Tensor mine = at::empty({R, 4}, options);  // LogitStats, logit of the target (if it is ours)
  {
    at::NoGradGuard off;
    for_chunks(gemm, in.hidden_RH.detach(), weight.value, [&](const at::Tensor& logits, int64_t begin, int64_t n) {
      at::parallel_for(0, n, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const float* row = logits.data_ptr<float>() + i * V;
          const LogitStats s = rows().fp.logit_stats(row, V, inv_temperature);
          const int64_t target = in.targets_R.data_ptr<int64_t>()[begin + i] - in.first_row;
          float* out = mine.data_ptr<float>() + (begin + i) * 4;
          out[0] = s.max, out[1] = s.rest, out[2] = s.weighted;
          out[3] = target >= 0 && target < V ? row[target] : 0.0f;
        }
      });
    });
  }
  const at::Tensor all = gather_stats(mine, in.tp);
  HeadOutput out{at::empty({R}, options), at::empty({R}, options)};
  std::vector<LogSoftmax> softmax_R;
  softmax_R.reserve(static_cast<size_t>(R));
  std::vector<LogitStats> shards(static_cast<size_t>(all.size(0)));
  for (int64_t r = 0; r < R; ++r) {
    float target_logit = 0;
    for (size_t s = 0; s < shards.size(); ++s) {
      const float* x = all.data_ptr<float>() + (static_cast<int64_t>(s) * R + r) * 4;
      shards[s] = {x[0], x[1], x[2]};
      target_logit += x[3];
    }
    softmax_R.push_back(combine(shards, inv_temperature));
    out.logprobs_R.data_ptr<float>()[r] = softmax_R.back().of(target_logit);
    out.entropy_R.data_ptr<float>()[r] = softmax_R.back().entropy;
  }
  if (at::GradMode::is_enabled() && in.hidden_RH.requires_grad()) {
    auto step = make_node<HeadStep>();
    step->set_next_edges({torch::autograd::impl::gradient_edge(in.hidden_RH)});
    step->gemm = &gemm;
    step->in = in;
    step->in.hidden_RH = in.hidden_RH.detach();
    step->weight = weight;
    step->softmax_R = std::move(softmax_R);
    torch::autograd::set_history(out.logprobs_R, step);
    torch::autograd::set_history(out.entropy_R, step);
  }
  return out;
}

}  // namespace tandem::model::kernel
