// SPDX-License-Identifier: Apache-2.0
// The output head and the log-probability of given tokens. [rows, vocabulary] exists for one chunk of rows at a time.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>

#include <algorithm>

#include "tandem/model/op/function.h"
#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

constexpr int64_t kChunkBytes = 16 << 20;  // of fp32 logits held at a time: what a cache may keep
constexpr int64_t kDeviceChunkBytes = 256 << 20;
constexpr int64_t kChunkRows = 4 * kernel::kParityRows;  // but so many rows: every chunk reads the weight, and adds to its whole gradient

// Runs body(logits, begin, rows) for each chunk of rows, in order.
template <class Body>
void for_chunks(const Kernels& k, const at::Tensor& hidden, const at::Tensor& weight, const Body& body) {
  const int64_t R = hidden.size(0), V = weight.size(0), step = std::min(head_chunk_rows(V, k.device()), std::max<int64_t>(R, 1));
  at::Tensor buffer = at::empty({step, V}, hidden.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < R; begin += step) {
    const int64_t rows = std::min(step, R - begin);
    at::Tensor logits = buffer.narrow(0, 0, rows);
    k.forward_float(logits, hidden.narrow(0, begin, rows), weight);
    body(logits, begin, rows);
  }
}

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t rows) { return t.defined() ? t.narrow(0, begin, rows) : t; }

struct HeadStep final : Step {
  const Kernels* kernels = nullptr;
  Parameter weight;
  float inv_temperature = 1;
  // saved: hidden, targets of this rank's rows, softmax
  // One of the gradients is undefined where the loss does not depend on it.
  variable_list apply(variable_list&& grads) override {
    const at::Tensor d_logprobs = grad_of(grads, 0), d_entropy = grad_of(grads, 1), &hidden = saved[0];
    at::Tensor d_hidden = at::empty_like(hidden);
    for_chunks(*kernels, hidden, weight.value, [&](at::Tensor& logits, int64_t begin, int64_t n) {
      const at::Tensor d_logits = kernels->logit().grad(logits, {{rows_of(saved[2], begin, n), {}},
                                                                 rows_of(saved[1], begin, n),
                                                                 rows_of(d_logprobs, begin, n),
                                                                 rows_of(d_entropy, begin, n),
                                                                 inv_temperature,
                                                                 hidden.scalar_type()});
      at::Tensor d_rows = d_hidden.narrow(0, begin, n);
      kernels->input_grad(d_rows, d_logits, weight.value);
      if (weight.grad.defined()) kernels->weight_grad(weight.grad, d_logits, hidden.narrow(0, begin, n));
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
  const Kernels* kernels = nullptr;
  Parameter weight;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor& hidden = saved[0];
    const at::Tensor d = grad_of(grads, 0).to(hidden.scalar_type());
    add_weight_grad(*kernels, weight, 0, d, hidden);
    at::Tensor d_hidden = at::empty_like(hidden);
    kernels->input_grad(d_hidden, d, weight.value);
    return {d_hidden};
  }
};

}  // namespace

int64_t head_chunk_rows(int64_t vocabulary, at::Device device) {
  const int64_t rows = (device.is_cuda() ? kDeviceChunkBytes : kChunkBytes) / 4 / vocabulary;
  return std::max(kChunkRows, rows / kernel::kParityRows * kernel::kParityRows);
}

at::Tensor head_scores(const Kernels& k, const at::Tensor& hidden, const Parameter& weight) {
  at::Tensor out = k.logit().scores(plain(hidden), weight.value);
  if (recording({hidden})) {
    auto step = make_step<ScoreStep>({hidden});
    step->kernels = &k;
    step->weight = weight;
    step->saved = {hidden.detach()};
    attach(out, step);
  }
  return out;
}

HeadOutput head_logprobs(const Kernels& k, const HeadInput& in, const Parameter& weight) {
  const auto inv_temperature = static_cast<float>(1.0 / in.temperature);
  const at::Tensor hidden = plain(in.hidden_RH), targets = at::sub(in.targets_R, in.first_row);
  at::Tensor mine = at::empty({hidden.size(0), 4}, hidden.options().dtype(at::kFloat));
  {
    at::NoGradGuard off;
    for_chunks(k, hidden, weight.value, [&](const at::Tensor& logits, int64_t begin, int64_t n) {
      at::Tensor stats = mine.narrow(0, begin, n);
      k.logit().stats(logits, targets.narrow(0, begin, n), inv_temperature, stats);
    });
  }
  const kernel::Softmax softmax = k.logit().combine(gather_stats(mine, in.tp), inv_temperature);
  HeadOutput out{softmax.logprobs_R, softmax.softmax_R3.select(1, 2).contiguous()};
  if (recording({in.hidden_RH})) {
    auto step = make_step<HeadStep>({in.hidden_RH});
    step->kernels = &k;
    step->weight = weight;
    step->inv_temperature = inv_temperature;
    step->saved = {hidden, targets, softmax.softmax_R3};
    attach(out.logprobs_R, step);
    attach(out.entropy_R, step);
  }
  return out;
}

}  // namespace tandem::model::op
