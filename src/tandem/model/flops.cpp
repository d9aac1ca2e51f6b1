// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/flops.h"

namespace tandem::model {
namespace {

// Parameters of products that a token meets.
int64_t attention_parameters(const ModelConfig& c) {
  const MlaConfig& m = c.mla;
  if (m.kv_rank == 0) return c.hidden_size * 2 * (c.q_size() + c.kv_size());
  const int64_t q_size = c.num_heads * (m.nope_dim + m.rope_dim);
  const int64_t queries = m.q_rank > 0 ? m.q_rank * (c.hidden_size + q_size) : c.hidden_size * q_size;
  return queries + c.hidden_size * (m.kv_rank + m.rope_dim) + m.kv_rank * c.num_heads * (m.nope_dim + m.v_dim) +
         c.num_heads * m.v_dim * c.hidden_size;
}

int64_t mlp_parameters(const ModelConfig& c, int64_t layer) {
  if (!c.is_sparse(layer)) return 3 * c.hidden_size * c.intermediate_size;
  const int64_t experts = c.moe.experts_per_token + c.moe.num_shared_experts;
  return c.hidden_size * c.moe.num_experts + 3 * c.hidden_size * c.moe.intermediate_size * experts;
}

int64_t output_parameters(const ModelConfig& c) {
  return c.num_heads * (c.mla.kv_rank > 0 ? c.mla.v_dim : c.head_dim) * c.hidden_size;
}

int64_t num_outputs(const ModelConfig& c) { return c.num_labels > 0 ? c.num_labels : c.vocab_size; }

double layer_parameters(const ModelConfig& c) {
  double parameters = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer)
    parameters += static_cast<double>(attention_parameters(c) + mlp_parameters(c, layer));
  return parameters;
}

double attention_flops(const ModelConfig& c, const TokenWork& work) {
  const bool latent = c.mla.kv_rank > 0;
  const int64_t key = latent ? c.mla.nope_dim + c.mla.rope_dim : c.head_dim, value = latent ? c.mla.v_dim : c.head_dim;
  return 3 * static_cast<double>(c.num_layers * c.num_heads * (key + value)) * work.squares;
}

}  // namespace

double training_flops(const ModelConfig& c, const TokenWork& work) {
  const double ends = static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size + num_outputs(c));
  return 6 * (ends + layer_parameters(c)) * work.tokens + attention_flops(c, work);
}

double needed_flops(const ModelConfig& c, const TokenWork& work, double wanted) {
  const auto behind_attention = static_cast<double>(output_parameters(c) + mlp_parameters(c, c.num_layers - 1));
  const double body = layer_parameters(c) * work.tokens - behind_attention * (work.tokens - wanted);
  const double head = static_cast<double>(c.hidden_size * num_outputs(c)) * wanted;
  return 6 * (body + head) + attention_flops(c, work);
}

}  // namespace tandem::model
