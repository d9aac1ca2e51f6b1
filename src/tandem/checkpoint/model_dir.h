// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Hugging Face model directory: config.json, model.safetensors or its shards, and the tokenizer's files.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tandem/base/box.h"
#include "tandem/checkpoint/safetensors.h"

namespace tandem::checkpoint {

/// Ownership  tensors are read-only views of mapped files and keep them alive.
/// Threads    const members from any thread.
/// Errors     UserError naming the file: missing or malformed files, an index that names an absent shard or tensor.
/// Read next  safetensors.h; model_export.h writes such a directory.
class ModelDir {
 public:
  explicit ModelDir(const std::string& directory);

  const std::string& path() const { return path_; }
  bool contains(const std::string& name) const { return file_of_.count(name) > 0; }
  std::vector<std::string> names() const;
  /// Dtype, shape and place without touching the data. Errors: as tensor().
  const TensorEntry& entry(const std::string& name) const;
  /// Errors: UserError if absent, with the nearest name.
  at::Tensor tensor(const std::string& name) const;
  /// Copies a box of a tensor into `to` (contiguous), of any float dtype; reads the bytes of that box alone. Block-scaled float8 (as
  /// DeepSeek-V3 is stored: NAME_scale_inv has a factor per block of quantization_config.weight_block_size) is multiplied out.
  /// Errors: as tensor(); UserError if the shape is another, or a float8 tensor has no scales of the right shape.
  void read(const TensorSpec& spec, at::Tensor to) const;
  /// What read() has read so far, and the size of all files of weights.
  int64_t bytes_read() const;
  int64_t file_bytes() const;
  /// Errors: UserError unless the directory holds exactly these tensors, and scales of theirs; those that `tolerates` says
  /// may be there and are not read.
  void require_exactly(const std::vector<std::string>& names, const std::function<bool(const std::string&)>& tolerates = {}) const;

 private:
  void read_scaled(const TensorSpec& spec, const SafetensorsFile& file, at::Tensor to) const;
  void open_shards(const std::string& index_path);
  const SafetensorsFile& file_with(const std::string& name) const;
  const SafetensorsFile& file_of_shape(const std::string& name, const std::vector<int64_t>& shape) const;

  std::string path_;
  nlohmann::json config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> file_of_;
};

}  // namespace tandem::checkpoint
