// SPDX-License-Identifier: Apache-2.0
#include "stages/loaded_model.h"

#include "tandem/base/rng.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"

namespace tandem::bench {
namespace {

at::Device threads_then_device(const Computing& o) {
  device::set_compute_threads(num_threads(o));
  const at::Device device = device::device_named(o.device, "--device");
  device::backend_of(device).use(device);
  return device;
}

}  // namespace

int num_threads(const WithModel& o) { return static_cast<int>(o.threads > 0 ? o.threads : device::num_cores()); }

LoadedModel::LoadedModel(const Computing& o)
    : options(o),
      arena("device", 0, threads_then_device(o)),
      kernels(model::kernel::backend_named(o.kernels, arena.device(), "--kernels"), model::dtype_of(o.dtype, "--dtype"), o.parity,
              arena.device()),
      model(model::read_config(o.model), {}, kernels, {arena, "weights"}) {
  model.load(o.model);
}

std::vector<int32_t> LoadedModel::random_ids(int64_t n, uint64_t stream) const {
  RandomStream random(static_cast<uint64_t>(options.seed), stream);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(3 + random.below(model.config().vocab_size - 3)));
  return ids;
}

}  // namespace tandem::bench
