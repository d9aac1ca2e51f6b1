// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of one layer's halves, as the families combine them.

#include "tandem/model/family/family.h"

namespace tandem::model::family {

using Parameters = std::vector<Parameter>;

void add_attention(Parameters& to, const ModelConfig& config, int64_t layer);
void add_latent_attention(Parameters& to, const ModelConfig& config, int64_t layer);
void add_mlp(Parameters& to, const ModelConfig& config, int64_t layer);
void add_experts(Parameters& to, const ModelConfig& config, int64_t layer);

/// "model.layers.3." + inside
std::string layer_name(int64_t layer, const std::string& inside);

}  // namespace tandem::model::family
