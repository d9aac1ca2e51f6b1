// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/decoder.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "tandem/model/kernel/packed.h"

namespace tandem::model {
namespace {

// Llama 3's stretch: wavelengths beyond the trained context by `factor`, those well inside it not at all, between them by a
// mix (Llama Team, The Llama 3 Herd of Models; as Hugging Face's "llama3" has it).
double stretched(double frequency, const RopeScaling& s) {
  if (s.type != "llama3") return frequency;
  const double turns = static_cast<double>(s.original_max_positions) * frequency / (2 * std::numbers::pi);  // within the context
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double share = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - share) * frequency / s.factor + share * frequency;
}

// Row p: cosines, then sines, of p * theta^(-2i/D) for i < D/2 (Su et al., RoFormer; angles in fp32 as Hugging Face has them).
at::Tensor rope_table(const ModelConfig& config) {
  const int64_t P = config.max_positions, D = config.head_dim, half = D / 2;
  at::Tensor table = at::empty({P, D}, at::kFloat);
  float* out = table.data_ptr<float>();
  for (int64_t i = 0; i < half; ++i) {
    const double plain = 1.0 / std::pow(config.rope_theta, static_cast<double>(2 * i) / static_cast<double>(D));
    const auto frequency = static_cast<float>(stretched(plain, config.rope_scaling));
    for (int64_t p = 0; p < P; ++p) {
      const float angle = static_cast<float>(p) * frequency;
      out[p * D + i] = std::cos(angle);
      out[p * D + half + i] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace

at::Tensor PackedContext::attend(int64_t, const at::Tensor& qkv, const kernel::AttentionShape& shape) {
  return kernel::attention(qkv, trees_, shape, parity_);
}

Decoder::Decoder(const ModelConfig& config, const kernel::Gemm& gemm, comm::Group* tp)
    : config_(config), gemm_(gemm), tp_(tp), cos_sin_PD_(rope_table(config)) {
  shape_ = {config.num_heads / tp_size(), local_kv_heads(config, tp_size()), config.head_dim};
  first_row_ = tp ? config.vocab_size / tp->size() * tp->rank() : 0;
}

struct Decoder::Pass {
  const ModelParameters& parameters;
  const TokenBatch& batch;
  AttentionContext& context;
};

std::pair<at::Tensor, at::Tensor> Decoder::layer(const Pass& pass, size_t index, const at::Tensor& x, const at::Tensor& delta) const {
  const LayerParameters& p = pass.parameters.layers[index];
  auto [residual, normed] = kernel::add_rms_norm(x, delta, p.input_norm, config_.norm_eps);
  at::Tensor qkv = kernel::linear(gemm_, kernel::enter_tensor_parallel(normed, tp_), p.qkv);
  if (config_.head_norm) qkv = kernel::head_norm(qkv, p.head_norm, config_.norm_eps, shape_);
  qkv = kernel::rope(qkv, p.qkv_bias, cos_sin_PD_, pass.batch.positions_T, shape_);
  at::Tensor attended = pass.context.attend(static_cast<int64_t>(index), qkv, shape_);
  if (index + 1 == pass.parameters.layers.size() && pass.batch.rows_R.defined()) {
    residual = kernel::select_rows(residual, pass.batch.rows_R);
    attended = kernel::select_rows(attended, pass.batch.rows_R);
  }
  attended = kernel::linear(gemm_, attended, p.output);
  auto [middle, post] = kernel::add_rms_norm(residual, kernel::leave_tensor_parallel(attended, tp_), p.post_norm, config_.norm_eps);
  const at::Tensor gate_up = kernel::linear(gemm_, kernel::enter_tensor_parallel(post, tp_), p.gate_up);
  const at::Tensor down = kernel::linear(gemm_, kernel::swiglu(gate_up), p.down);
  return {middle, kernel::leave_tensor_parallel(down, tp_)};
}

at::Tensor Decoder::forward(const ModelParameters& parameters, const TokenBatch& batch, AttentionContext& context, bool recompute) const {
  at::Tensor x = kernel::leave_tensor_parallel(kernel::embed(parameters.embedding, batch.ids_T, first_row_), tp_), delta;
  const Pass pass{parameters, batch, context};
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    const auto run = [this, pass, i](const at::Tensor& a, const at::Tensor& b) { return layer(pass, i, a, b); };
    std::tie(x, delta) = recompute ? kernel::recompute(run, x, delta) : run(x, delta);
  }
  return kernel::add_rms_norm(x, delta, parameters.final_norm, config_.norm_eps).second;
}

kernel::HeadOutput Decoder::logprobs(const ModelParameters& parameters, const at::Tensor& hidden, const at::Tensor& targets,
                                     double temperature) const {
  const at::Tensor entered = kernel::enter_tensor_parallel(hidden, tp_);
  return kernel::head_logprobs(gemm_, {entered, targets, first_row_, temperature == 0 ? 1.0 : temperature, tp_}, parameters.head);
}

at::Tensor Decoder::local_logits(const ModelParameters& parameters, const at::Tensor& hidden) const {
  if (parameters.head.packed.serves(hidden.size(0))) return kernel::packed_product(hidden, parameters.head.packed);
  at::Tensor logits = at::empty({hidden.size(0), parameters.head.value.size(0)}, hidden.options().dtype(at::kFloat));
  gemm_.forward_float(logits, hidden, parameters.head.value);
  return logits;
}

}  // namespace tandem::model
