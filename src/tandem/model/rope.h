// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary positions, and how they reach beyond the trained context.

#include <ATen/core/Tensor.h>

#include "tandem/model/config.h"

namespace tandem::model {

/// [max_positions, head_dim], fp32: row p holds the cosines, then the sines of p * theta^(-2i/D) for i < D/2 (Su et al., RoFormer;
/// angles in fp32 as Hugging Face has them), stretched as config.rope_scaling says.
at::Tensor rope_table(const ModelConfig& config);

/// What latent attention multiplies its scores by: 1 / sqrt(query width), times YaRN's square of 0.1 mscale_all_dim ln(factor) + 1.
float latent_softmax_scale(const ModelConfig& config);

}  // namespace tandem::model
