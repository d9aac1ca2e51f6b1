// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes a Hugging Face model directory, one tensor in memory at a time: one file of weights, or several with an index.

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tandem/checkpoint/safetensors.h"

namespace tandem::checkpoint {

/// What a directory of weights is written from.
struct ModelSource {
  std::vector<TensorInfo> tensors;
  TensorSource values;  ///< asked for each tensor once, in the order of plan_shards()
};

struct ExportOptions {
  int64_t max_shard_bytes = 5'000'000'000;  ///< of the tensors of one file; a larger tensor has a file of its own
  std::map<std::string, std::string> files;  ///< what stands beside the weights, by name; tokenizer_files() of another model
};

/// The files of a model directory that go into one made from it, by name: tokenizer, chat template, generation defaults. Those it
/// has not are left out. Errors: UserError naming one that cannot be read.
std::map<std::string, std::string> tokenizer_files(const std::string& directory);

/// One file of weights, and its tensors in the order they are written.
struct Shard {
  std::string file;
  std::vector<TensorInfo> tensors;
};
/// Cuts a model as transformers 5 does: tensors by name, numbers in it by value, as many to a file as fit. model.safetensors alone
/// if all do, else model-00001-of-0000N.safetensors and so on.
std::vector<Shard> plan_shards(std::vector<TensorInfo> tensors, int64_t max_shard_bytes);

/// Writes config.json, the files beside, and last the weights and, where they are several files, model.safetensors.index.json;
/// removes the weights that an earlier model left there. No file of weights takes its name before all are written.
/// Returns the checksums of all it wrote. Errors: PeerError naming the path if something cannot be written: the weights of an earlier
/// model stay. What `source` throws.
Sums write_model_dir(const std::string& directory, const nlohmann::json& config, const ModelSource& source,
                     const ExportOptions& options = {});
/// The same of tensors that are held (contiguous, on the CPU).
Sums write_model_dir(const std::string& directory, const nlohmann::json& config, const std::map<std::string, at::Tensor>& tensors,
                     const ExportOptions& options = {});

}  // namespace tandem::checkpoint
