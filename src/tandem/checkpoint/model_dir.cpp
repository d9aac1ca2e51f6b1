// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/model_dir.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/options.h"

namespace tandem::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string shape_text(const std::vector<int64_t>& shape) { return json(shape).dump(); }

// {rows, columns} of a block that shares a scale.
std::pair<int64_t, int64_t> block_of(const json& config, const std::string& where) {
  const json how = config.value("quantization_config", json::object());
  const json sizes = how.is_object() ? how.value("weight_block_size", json::array({128, 128})) : how;
  const auto positive = [](const json& n) { return n.is_number_unsigned() && n > 0; };
  if (!sizes.is_array() || sizes.size() != 2 || !positive(sizes[0]) || !positive(sizes[1]))
    throw UserError(where, "weight_block_size is " + sizes.dump(), "two positive numbers");
  return {sizes[0].get<int64_t>(), sizes[1].get<int64_t>()};
}

// Weights may be there in a form that is not read.
[[noreturn]] void refuse_without_weights(const std::string& directory) {
  const auto is_weights = [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".gguf") || name.ends_with(".pt") || name.ends_with(".pth") ||
           name.ends_with(".h5") || name.ends_with(".msgpack") || name.ends_with(".onnx") ||
           (name.ends_with(".bin") && name.find("model") != std::string::npos);
  };
  std::set<std::string> others;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed))
    if (const std::string name = entry.path().filename(); is_weights(name)) others.insert(name);
  constexpr const char* kWanted = "expected model.safetensors, or shards with model.safetensors.index.json";
  if (others.empty()) throw UserError(directory, "holds no weights", kWanted);
  if (others.count("adapter_model.safetensors") || others.count("adapter_model.bin"))
    throw UserError(directory, "holds no weights but those of a PEFT adapter",
                    std::string(kWanted) + ": merge the adapter into its base model");
  throw UserError(directory, "holds no weights that are read: it has " + *others.begin(),
                  std::string(kWanted) + "; transformers writes them with save_pretrained(DIR)");
}

}  // namespace

ModelDir::ModelDir(const std::string& directory) : path_(directory) {
  if (!fs::is_directory(directory)) throw UserError(directory, "there is no such directory",
                    "expected a Hugging Face model directory; `scripts/get OWNER/NAME` fetches one");
  config_ = read_json_object(directory + "/config.json");
  const std::string single = directory + "/model.safetensors", index = directory + "/model.safetensors.index.json";
  if (fs::exists(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, entry] : files_[0]->tensors()) file_of_[name] = files_[0].get();
  } else if (fs::exists(index)) {
    open_shards(index);
  } else {
    refuse_without_weights(directory);
  }
}

void ModelDir::open_shards(const std::string& index_path) {
  const json index = read_json_object(index_path);
  if (!index.contains("weight_map") || !index["weight_map"].is_object())
    throw UserError(index_path, "has no weight_map", "expected {\"weight_map\": {tensor: file}}");
  std::map<std::string, const SafetensorsFile*> by_file;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    if (shard.empty() || fs::path(shard).filename() != shard)
      throw UserError(index_path, "tensor `" + name + "` lies in " + file.dump(), "expected the name of a file beside the index");
    const SafetensorsFile*& open = by_file[shard];
    if (!open) {
      files_.push_back(std::make_unique<SafetensorsFile>(path_ + "/" + shard));
      open = files_.back().get();
    }
    if (!open->contains(name))
      throw UserError(open->path(), "holds no tensor `" + name + "`, which the index places there",
                      "expected index and shards of one model");
    file_of_[name] = open;
  }
}

std::vector<std::string> ModelDir::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : file_of_) all.push_back(name);
  return all;
}

const SafetensorsFile& ModelDir::file_with(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    const std::string nearest = nearest_name(name, names());
    throw UserError(path_, "holds no tensor `" + name + "`",
                    nearest.empty() ? "it holds none at all" : "the nearest name is `" + nearest + "`");
  }
  return *found->second;
}

const TensorEntry& ModelDir::entry(const std::string& name) const { return file_with(name).tensors().at(name); }
at::Tensor ModelDir::tensor(const std::string& name) const { return file_with(name).view(name); }

const SafetensorsFile& ModelDir::file_of_shape(const std::string& name, const std::vector<int64_t>& shape) const {
  const SafetensorsFile& file = file_with(name);
  const std::vector<int64_t>& held = file.tensors().at(name).shape;
  if (held == shape) return file;
  throw UserError(file.path(), "tensor `" + name + "` has shape " + shape_text(held), "expected " + shape_text(shape) + " by config.json");
}

void ModelDir::read(const TensorSpec& spec, at::Tensor to) const {
  const SafetensorsFile& file = file_of_shape(spec.name, spec.shape);
  const c10::ScalarType stored = file.tensors().at(spec.name).dtype;
  if (stored == at::kFloat8_e4m3fn) return read_scaled(spec, file, std::move(to));
  if (!at::isFloatingType(stored) || c10::elementSize(stored) == 1)
    throw UserError(file.path(), "tensor `" + spec.name + "` has dtype " + c10::toString(stored),
                    "expected F32, BF16, F16, or F8_E4M3 with scales");
  file.read(spec.name, spec.box, std::move(to));
}

// Block by block of rows, so that no fp32 copy of the whole is held.
void ModelDir::read_scaled(const TensorSpec& spec, const SafetensorsFile& file, at::Tensor to) const {
  const auto [rows, columns] = block_of(config_, path_ + "/config.json");
  if (spec.shape.size() != 2)
    throw UserError(file.path(), "float8 tensor `" + spec.name + "` is no matrix", "block-scaled float8 matrices");
  const auto blocks = [](int64_t n, int64_t block) { return (n + block - 1) / block; };
  const std::vector<int64_t> scale_shape = {blocks(spec.shape[0], rows), blocks(spec.shape[1], columns)};
  const std::string scale_name = spec.name + "_scale_inv";
  at::Tensor scales = at::empty(scale_shape, at::kFloat);
  file_of_shape(scale_name, scale_shape).read(scale_name, Box::whole(scale_shape), scales);
  const Box& box = spec.box;
  at::parallel_for(box.begin[0] / rows, blocks(box.end[0], rows), 1, [&, rows = rows, columns = columns](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const Box strip{{std::max(block * rows, box.begin[0]), box.begin[1]}, {std::min((block + 1) * rows, box.end[0]), box.end[1]}};
      at::Tensor values = at::empty(strip.shape(), at::kFloat);
      file.read(spec.name, strip, values);
      for (int64_t c = box.begin[1], end = 0; c < box.end[1]; c = end) {
        end = std::min((c / columns + 1) * columns, box.end[1]);
        values.narrow(1, c - box.begin[1], end - c).mul_(scales.select(0, block).select(0, c / columns));
      }
      to.narrow(0, strip.begin[0] - box.begin[0], strip.extent(0)).copy_(values);
    }
  });
}

int64_t ModelDir::bytes_read() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes_read();
  return bytes;
}

int64_t ModelDir::file_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->file_bytes();
  return bytes;
}

void ModelDir::require_exactly(const std::vector<std::string>& names, const std::function<bool(const std::string&)>& tolerates) const {
  std::set<std::string> expected(names.begin(), names.end());
  for (const std::string& name : names) {
    file_with(name);
    expected.insert(name + "_scale_inv");
  }
  for (const auto& [name, file] : file_of_)
    if (!expected.count(name) && !(tolerates && tolerates(name)))
      throw UserError(file->path(), "holds tensor `" + name + "`, which this model does not have",
                      "the nearest name it has is `" + nearest_name(name, names) + "`");
}

}  // namespace tandem::checkpoint
