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
#include "tandem/model/family/tiny_config.h"

namespace tandem::test {

using model::config_of, model::experts_config, model::tiny_config;

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
