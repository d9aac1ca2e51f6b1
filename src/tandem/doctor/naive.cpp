// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/naive.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <vector>

namespace tandem::doctor::naive {

using model::kernel::AttentionRows, model::kernel::AttentionShape, model::kernel::ExpertRows, model::kernel::RouterShape;

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

namespace {

struct Heads {
  at::Tensor queries, keys, values;  // [T, heads, D]
  Heads(const at::Tensor& qkv, const AttentionShape& s) {
    const at::Tensor all = qkv.reshape({qkv.size(0), s.num_heads + 2 * s.num_kv_heads, s.head_dim});
    queries = all.narrow(1, 0, s.num_heads);
    keys = all.narrow(1, s.num_heads, s.num_kv_heads);
    values = all.narrow(1, s.num_heads + s.num_kv_heads, s.num_kv_heads);
  }
};

at::Tensor together(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
  return at::cat({queries, keys, values}, 1).flatten(1);
}

}  // namespace

at::Tensor head_norm(const at::Tensor& qkv, const at::Tensor& norms, double eps, const AttentionShape& s) {
  const Heads heads(qkv, s);
  const auto normed = [&](const at::Tensor& part, int64_t which) {
    return rms_norm(part, norms.narrow(0, which * s.head_dim, s.head_dim), eps);
  };
  return together(normed(heads.queries, 0), normed(heads.keys, 1), heads.values);
}

at::Tensor rope(const at::Tensor& qkv, const at::Tensor& bias, const model::kernel::Rotation& rotation) {
  const AttentionShape& s = rotation.shape;
  const int64_t half = s.head_dim / 2;
  const Heads heads(bias.defined() ? qkv + bias : qkv, s);
  const at::Tensor angles = rotation.cos_sin_PD.to(at::kDouble).index_select(0, rotation.positions_T).unsqueeze(1);
  const at::Tensor cos = angles.narrow(2, 0, half), sin = angles.narrow(2, half, half);
  const auto turned = [&](const at::Tensor& part) {
    const at::Tensor a = part.narrow(2, 0, half), b = part.narrow(2, half, half);
    return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
  };
  return together(turned(heads.queries), turned(heads.keys), heads.values);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t F = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, F);
  return gate / (1 + (-gate).exp()) * gate_up.narrow(1, F, F);
}

at::Tensor attention(const AttentionRows& in, const at::Tensor& sees, const AttentionShape& s) {
  const int64_t D = s.head_dim, K = s.num_kv_heads;
  const auto heads = [&](const at::Tensor& rows, int64_t n) { return rows.reshape({rows.size(0), n, D}).transpose(0, 1); };
  const at::Tensor q = heads(in.q_OQ, s.num_heads);
  const at::Tensor k = heads(in.kv_TK.narrow(1, 0, K * D), K).repeat_interleave(s.group(), 0);
  const at::Tensor v = heads(in.kv_TK.narrow(1, K * D, K * D), K).repeat_interleave(s.group(), 0);
  const at::Tensor hidden = sees.logical_not().unsqueeze(0);
  const at::Tensor scores = (at::matmul(q, k.transpose(1, 2)) * static_cast<double>(s.scale())).masked_fill(hidden, -1e300);
  return at::matmul(scores.softmax(-1), v).transpose(0, 1).flatten(1);
}

at::Tensor sees(const model::kernel::Trees& trees, int64_t num_tokens) {
  at::Tensor all = at::zeros({num_tokens, num_tokens}, at::kBool);
  const auto causal = [&](int64_t begin, int64_t length) {
    for (int64_t i = 0; i < length; ++i) all.narrow(0, begin + i, 1).narrow(1, begin, i + 1).fill_(true);
  };
  for (const model::kernel::Tree& tree : trees) {
    causal(tree.begin, tree.stem);
    int64_t begin = tree.begin + tree.stem;
    for (const int64_t length : tree.branches) {
      all.narrow(0, begin, length).narrow(1, tree.begin, tree.stem).fill_(true);
      causal(begin, length);
      begin += length;
    }
  }
  return all;
}

at::Tensor log_probabilities(const at::Tensor& logits, double temperature) {
  const at::Tensor z = logits / temperature, most = z.amax(1, true);
  return z - most - (z - most).exp().sum(1, true).log();
}

at::Tensor grouped(const at::Tensor& x, const at::Tensor& w, const ExpertRows& rows) {
  const int64_t E = rows.num_experts(), N = w.size(0) / E;
  std::vector<at::Tensor> parts;
  for (int64_t e = 0; e < E; ++e) {
    const int64_t first = rows.offsets[static_cast<size_t>(e)], count = rows.offsets[static_cast<size_t>(e) + 1] - first;
    parts.push_back(at::matmul(x.narrow(0, first, count), w.narrow(0, e * N, N).t()));
  }
  return at::cat(parts);
}

at::Tensor scores(const at::Tensor& logits, const RouterShape& s) {
  return s.sigmoid ? 1 / (1 + (-logits).exp()) : log_probabilities(logits, 1).exp();
}

at::Tensor chosen_weights(const at::Tensor& scores, const at::Tensor& experts, const RouterShape& s) {
  const at::Tensor chosen = scores.gather(1, experts);
  return (s.normalize ? chosen / chosen.sum(1, true) : chosen) * static_cast<double>(s.scaling);
}

}  // namespace tandem::doctor::naive
