// SPDX-License-Identifier: Apache-2.0
#pragma once
// A whole safetensors file at once, of tensors that are there.

#include <map>
#include <string>
#include <vector>

#include "tandem/base/file/durable_file.h"
#include "tandem/checkpoint/safetensors.h"

namespace tandem::checkpoint {

/// Of tensors that are contiguous and on the CPU. Errors: as DurableFile.
inline void write_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  DurableFile file(path);
  write_safetensors(file, std::move(infos), [&](const std::string& name) { return tensors.at(name); }, metadata);
  file.commit();
}

}  // namespace tandem::checkpoint
