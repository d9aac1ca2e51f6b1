// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/rope.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::model {
namespace {

// Llama 3's stretch: wavelengths beyond the trained context by `factor`, those well inside it not at all, between them by a
// mix (Llama Team, The Llama 3 Herd of Models; as Hugging Face's "llama3" has it).
double llama3(double frequency, const RopeScaling& s) {
  const double turns = static_cast<double>(s.original_max_positions) * frequency / (2 * std::numbers::pi);  // within the context
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double share = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - share) * frequency / s.factor + share * frequency;
}

// YaRN's: a ramp over the dimensions between those that turn beta_fast and beta_slow times (Peng et al., YaRN, section 3.2).
double yarn(double frequency, int64_t i, const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  const auto dimension = [&](double turns) {
    return static_cast<double>(c.head_dim) * std::log(static_cast<double>(s.original_max_positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(c.rope_theta));
  };
  const double low = std::max(std::floor(dimension(s.beta_fast)), 0.0);
  const double high = std::min(std::ceil(dimension(s.beta_slow)), static_cast<double>(c.head_dim - 1));
  const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
  return ramp * frequency / s.factor + (1 - ramp) * frequency;
}

double magnitude(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double stretched(double frequency, int64_t i, const ModelConfig& c) {
  if (c.rope_scaling.type == "llama3") return llama3(frequency, c.rope_scaling);
  if (c.rope_scaling.type == "linear") return frequency / c.rope_scaling.factor;
  return c.rope_scaling.type == "yarn" ? yarn(frequency, i, c) : frequency;
}

// Of cosines and sines; 1 but for YaRN.
double length(const RopeScaling& s) {
  if (s.type != "yarn") return 1.0;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.mscale > 0 && s.mscale_all_dim > 0) return magnitude(s.factor, s.mscale) / magnitude(s.factor, s.mscale_all_dim);
  return magnitude(s.factor, 1);
}

}  // namespace

at::Tensor rope_table(const ModelConfig& config) {
  const int64_t P = config.max_positions, D = config.head_dim, half = D / 2;
  at::Tensor table = at::empty({P, D}, at::kFloat);
  float* out = table.data_ptr<float>();
  const auto scale = static_cast<float>(length(config.rope_scaling));
  for (int64_t i = 0; i < half; ++i) {
    const double plain = 1.0 / std::pow(config.rope_theta, static_cast<double>(2 * i) / static_cast<double>(D));
    const auto frequency = static_cast<float>(stretched(plain, i, config));
    for (int64_t p = 0; p < P; ++p) {
      const float angle = static_cast<float>(p) * frequency;
      out[p * D + i] = std::cos(angle) * scale;
      out[p * D + half + i] = std::sin(angle) * scale;
    }
  }
  return table;
}

float latent_softmax_scale(const ModelConfig& config) {
  const RopeScaling& s = config.rope_scaling;
  const double m = s.type == "yarn" && s.mscale_all_dim > 0 ? magnitude(s.factor, s.mscale_all_dim) : 1.0;
  return static_cast<float>(m * m / std::sqrt(static_cast<double>(config.mla.nope_dim + config.mla.rope_dim)));
}

}  // namespace tandem::model
