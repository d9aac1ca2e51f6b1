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

// All ranks' values for each of `rows` rows, [ranks][rows][4]; with one rank, its own.
at::Tensor gather_stats(const at::Tensor& mine, comm::Group* tp) {
  if (!tp || tp->size() == 1) return mine.unsqueeze(0);
  at::Tensor all = at::empty({tp->size(), mine.size(0), mine.size(1)}, mine.options());
  tp->all_gather(all, mine);
  return all;
}

}  // namespace

int64_t head_chunk_rows(int64_t vocabulary, at::Device device) {
  const int64_t rows = (device.is_cuda() ? kDeviceChunkBytes : kChunkBytes) / 4 / vocabulary;
  return std::max(kChunkRows, rows / kernel::kParityRows * kernel::kParityRows);
}

at::Tensor head_scores(const Kernels& k, const at::Tensor& hidden, const Parameter& weight) {
  at::Tensor out = k.logit().scores(plain(hidden), weight.value);
  if (recording({hidden}))
    record({hidden}, {out}, [&k, weight, kept = hidden.detach()](const Gradients& d) {
      const at::Tensor d_scores = d[0].to(kept.scalar_type());
      add_weight_grad(k, weight, 0, d_scores, kept);
      at::Tensor d_hidden = at::empty_like(kept);
      k.input_grad(d_hidden, d_scores, weight.value);
      return Gradients{d_hidden};
    });
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
    // One of the gradients is undefined where the loss does not depend on it.
    const auto backward = [&k, hidden, targets, softmax = softmax.softmax_R3, weight = weight.value, grad = weight.grad,
                           inv_temperature](const Gradients& d) mutable {
      at::Tensor d_hidden = at::empty_like(hidden);
      for_chunks(k, hidden, weight, [&](at::Tensor& logits, int64_t begin, int64_t n) {
        const kernel::LogitGrad of_rows{{rows_of(softmax, begin, n), {}}, rows_of(targets, begin, n), rows_of(d[0], begin, n),
                                        rows_of(d[1], begin, n),          inv_temperature,            hidden.scalar_type()};
        const at::Tensor d_logits = k.logit().grad(logits, of_rows);
        at::Tensor d_rows = d_hidden.narrow(0, begin, n);
        k.input_grad(d_rows, d_logits, weight);
        if (grad.defined()) k.weight_grad(grad, d_logits, hidden.narrow(0, begin, n));
      });
      return Gradients{d_hidden};
    };
    record({in.hidden_RH}, {out.logprobs_R, out.entropy_R}, backward);
  }
  return out;
}

}  // namespace tandem::model::op
