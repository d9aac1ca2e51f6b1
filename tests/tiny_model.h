// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small Qwen2 in memory with everything an engine or a trainer needs around it.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/select.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/device/arena.h"
#include "tandem/device/device.h"
#include "tandem/model/decoder.h"

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

/// The same for another family.
inline model::ModelConfig config_of(const std::string& family, int64_t kv_heads) {
  model::ModelConfig config = tiny_config();
  config.family = family;
  config.num_kv_heads = kv_heads;
  config.qkv_bias = family == "qwen2";
  config.head_norm = family == "qwen3" || family == "qwen3_moe";
  return config;
}

/// A sparse one: qwen3_moe or deepseek_v3.
inline model::ModelConfig experts_config(const std::string& family) {
  model::ModelConfig config = config_of(family, 2);
  config.moe.num_experts = 6;
  config.moe.experts_per_token = 2;
  config.moe.intermediate_size = 16;
  config.moe.normalize = true;
  if (family == "qwen3_moe") return config;
  config.moe.num_shared_experts = 1;
  config.moe.num_groups = 3;
  config.moe.top_groups = 2;
  config.moe.sigmoid = config.moe.correction_bias = true;
  config.moe.scaling = 1.5;
  config.moe.first_sparse_layer = 1;
  config.mla = {12, 16, 8, 4, 6, true};
  config.head_dim = 4;
  config.num_kv_heads = config.num_heads;
  return config;
}

/// What TANDEM_TEST_DEVICE names, of a rank; the processor without it. The calling thread works with it from now on.
inline at::Device device_under_test(int rank = 0) {
  const char* name = std::getenv("TANDEM_TEST_DEVICE");
  const at::Device device = device::device_named(name ? name : "cpu", "TANDEM_TEST_DEVICE", rank, rank + 1);
  device::backend_of(device).use(device);
  return device;
}

/// What TANDEM_TEST_KERNELS names; our own kernels without it.
inline const model::kernel::Backend& backend_under_test(at::Device device) {
  const char* name = std::getenv("TANDEM_TEST_KERNELS");
  return model::kernel::backend_named(name ? name : "auto", device, "TANDEM_TEST_KERNELS");
}

/// Not as measured, which may differ from one model to the next and bits with it.
inline model::kernel::Kernels fixed_products(c10::ScalarType dtype, bool parity, at::Device device) {
  using model::kernel::Library;
  const model::kernel::Backend& backend = backend_under_test(device);
  if (parity || !backend.product.choices) return {backend, dtype, parity, device};
  const Library library = dtype == at::kFloat ? Library::kBlas : Library::kOneDnn;
  return {backend, dtype, model::kernel::GemmChoice{library, library, library}, device};
}

/// Weights are N(0, deviation) with non-zero biases, so that every term of the decoder counts.
struct TinyModel {
  device::Arena arena{"device", 0, device_under_test()};
  std::unique_ptr<comm::Group> alone = comm::single();
  model::kernel::Kernels kernels;
  model::ParameterTable table;
  model::Decoder decoder;
  at::Tensor values;
  model::ModelParameters parameters;

  explicit TinyModel(const model::ModelConfig& config = tiny_config(), c10::ScalarType dtype = at::kFloat, bool parity = false,
                     double deviation = 0.3, uint64_t seed = 1)
      : kernels(fixed_products(dtype, parity, arena.device())),
        table(model::parameter_table(config, {}, 0)),
        decoder(config, kernels, {}),
        values(arena.allocate("weights", {table.num_elements}, dtype)),
        parameters(model::make_parameters(table, values, at::Tensor())) {
    model::initialize_parameters(table, values, seed, deviation);
    RandomStream random(seed, 7);
    for (const model::ParameterEntry& e : table.entries) {
      if (e.parameter.shape.size() != 1) continue;
      at::Tensor view = table.view(values, e), host = view.cpu();
      for (int64_t i = 0; i < host.numel(); ++i) host[i] = host[i].item<float>() + 0.2 * random.normal();
      view.copy_(host);
    }
  }
};

}  // namespace tandem::test
