// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/cpu.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <vector>

#include "tandem/model/kernel/cpu/row_loop.h"
#include "tandem/model/kernel/cpu/sampler.h"

namespace tandem::model::kernel::cpu {
namespace {

void stats(const at::Tensor& logits, const at::Tensor& targets, float inv_temperature, at::Tensor& out) {
  const int64_t V = logits.size(1);
  at::parallel_for(0, logits.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* row = logits.data_ptr<float>() + r * V;
      const LogitStats s = rows().fp.logit_stats(row, V, inv_temperature);
      const int64_t target = targets.data_ptr<int64_t>()[r];
      float* to = out.data_ptr<float>() + r * 4;
      to[0] = s.max, to[1] = s.rest, to[2] = s.weighted;
      to[3] = target >= 0 && target < V ? row[target] : 0.0f;
    }
  });
}

Softmax combine_rows(const at::Tensor& all, float inv_temperature) {
  const int64_t R = all.size(1);
  Softmax out{at::empty({R, 3}, all.options()), at::empty({R}, all.options())};
  std::vector<LogitStats> shards(static_cast<size_t>(all.size(0)));
  for (int64_t r = 0; r < R; ++r) {
    float target_logit = 0;
    for (size_t s = 0; s < shards.size(); ++s) {
      const float* x = all.data_ptr<float>() + (static_cast<int64_t>(s) * R + r) * 4;
      shards[s] = {x[0], x[1], x[2]};
      target_logit += x[3];
    }
    const LogSoftmax softmax = combine(shards, inv_temperature);
    float* to = out.softmax_R3.data_ptr<float>() + r * 3;
    to[0] = softmax.max, to[1] = softmax.log_sum, to[2] = softmax.entropy;
    out.logprobs_R.data_ptr<float>()[r] = softmax.of(target_logit);
  }
  return out;
}

at::Tensor grad(at::Tensor& logits, const LogitGrad& in) {
  const int64_t V = logits.size(1);
  const auto of_row = [](const at::Tensor& d, int64_t r) { return d.defined() ? d.data_ptr<float>()[r] : 0.0f; };
  const at::Tensor d_logits = in.dtype == at::kFloat ? logits : at::empty(logits.sizes(), logits.options().dtype(in.dtype));
  at::parallel_for(0, logits.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* s = in.of.softmax_R3.data_ptr<float>() + r * 3;
      const LogSoftmax softmax{in.inv_temperature, s[0], s[1], s[2]};
      const RowGrad row{of_row(in.d_logprobs_R, r) * in.inv_temperature, of_row(in.d_entropy_R, r) * in.inv_temperature,
                               in.targets_R.data_ptr<int64_t>()[r]};
      by_dtype(d_logits, [&]<class T>(T) {
        row_table<T>().logit_grad(logits.data_ptr<float>() + r * V, V, softmax, row, pointer<T>(d_logits) + r * V);
      });
    }
  });
  return d_logits;
}

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

// Few labels: no product of matrices is worth its call, and bfloat16 keeps all it can.
at::Tensor scores(const at::Tensor& hidden, const at::Tensor& weight) {
  const int64_t R = hidden.size(0), H = hidden.size(1), L = weight.size(0);
  const at::Tensor x = hidden.to(at::kFloat), w = weight.to(at::kFloat);
  at::Tensor out = at::empty({R, L}, x.options());
  for_rows(R, L * H, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t l = 0; l < L; ++l) out.data_ptr<float>()[r * L + l] = dot(x.data_ptr<float>() + r * H, w.data_ptr<float>() + l * H, H);
  });
  return out;
}

at::Tensor draw_rows(const at::Tensor& logits, const DrawArgs& args) {
  const int64_t S = logits.size(0), R = logits.size(1), V = logits.size(2), D = args.rows_D.numel();
  at::Tensor words = at::empty({4, D}, logits.options());
  auto* tokens = reinterpret_cast<int32_t*>(words.data_ptr<float>());
  float *logprobs = words.data_ptr<float>() + D, *kept_mass = logprobs + D;
  std::fill_n(kept_mass + D, D, 0.0f);  // a draw throws where the logits are not finite
  const float* base = logits.data_ptr<float>();
  const int64_t *rows = args.rows_D.data_ptr<int64_t>(), *top_k = args.top_k_D.data_ptr<int64_t>();
  const double *temperature = args.temperature_D.data_ptr<double>(), *top_p = args.top_p_D.data_ptr<double>(),
               *uniform = args.uniform_D.data_ptr<double>();
  at::parallel_for(0, D, 1, [&](int64_t begin, int64_t end) {
    std::vector<const float*> shards(static_cast<size_t>(S));
    for (int64_t d = begin; d < end; ++d) {
      for (int64_t s = 0; s < S; ++s) shards[static_cast<size_t>(s)] = base + (s * R + rows[d]) * V;
      const Drawn drawn = draw({shards, V, args.vocab_size, args.num_tokens}, {temperature[d], top_p[d], top_k[d]}, uniform[d]);
      tokens[d] = drawn.token;
      logprobs[d] = drawn.logprob;
      kept_mass[d] = drawn.kept_mass;
    }
  });
  return words;
}

}  // namespace

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

const LogitKernels kLogitKernels = {stats, combine_rows, grad, scores, draw_rows};

}  // namespace tandem::model::kernel::cpu
