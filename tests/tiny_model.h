// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small Qwen2 in memory with everything an engine or a trainer needs around it.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/select.h>

#include <memory>
#include <string>
#include <vector>

#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/device/arena.h"
#include "tandem/model/decoder.h"
#include "tandem/monitor/recorder.h"

namespace tandem::test {

inline model::ModelConfig tiny_config() {
  model::ModelConfig c;
  c.family = "qwen2";
  c.vocab_size = 64;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.max_positions = 128;
  c.norm_eps = 1e-6;
  c.rope_theta = 10000;
  c.tied_embeddings = true;
  c.qkv_bias = true;
  c.eos_ids = {1};
  return c;
}

/// Weights are N(0, deviation) with non-zero biases, so that every term of the decoder counts.
struct TinyModel {
  device::Arena arena{"device"};
  monitor::Recorder recorder;
  std::unique_ptr<comm::Group> alone = comm::single();
  model::kernel::Gemm gemm;
  model::ParameterTable table;
  model::Decoder decoder;
  at::Tensor values;
  model::ModelParameters parameters;

  explicit TinyModel(const model::ModelConfig& config = tiny_config(), c10::ScalarType dtype = at::kFloat, bool parity = false,
                     double deviation = 0.3, uint64_t seed = 1)
      : gemm(dtype, parity),
        table(model::parameter_table(config, {}, 0)),
        decoder(config, gemm, nullptr),
        values(arena.allocate("weights", {table.num_elements}, dtype)),
        parameters(model::make_parameters(table, values, at::Tensor())) {
    model::initialize_parameters(table, values, seed, deviation);
    RandomStream random(seed, 7);
    for (const model::ParameterEntry& e : table.entries) {
      if (e.parameter.shape.size() != 1) continue;
      at::Tensor view = table.view(values, e);
      for (int64_t i = 0; i < view.numel(); ++i) view[i] = view[i].item<float>() + 0.2 * random.normal();
    }
  }
};

}  // namespace tandem::test
