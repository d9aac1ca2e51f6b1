// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/model_dir.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tandem/base/error.h"
#include "tandem/base/options.h"
#include "tandem/checkpoint/durable_file.h"

namespace tandem::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

json read_json(const std::string& path) {
  if (!fs::is_regular_file(path)) throw UserError(path, "is missing", "expected a Hugging Face model directory");
  json value = json::parse(read_whole(path), nullptr, false);
  if (!value.is_object()) throw UserError(path, "is not a JSON object", "expected an intact file");
  return value;
}

std::string shape_text(const std::vector<int64_t>& shape) { return json(shape).dump(); }

}  // namespace

ModelDir::ModelDir(const std::string& directory) : path_(directory) {
  if (!fs::is_directory(directory)) throw UserError(directory, "there is no such directory", "expected a Hugging Face model directory");
  config_ = read_json(directory + "/config.json");
  const std::string single = directory + "/model.safetensors", index = directory + "/model.safetensors.index.json";
  if (fs::exists(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, entry] : files_[0]->tensors()) file_of_[name] = files_[0].get();
  } else if (fs::exists(index)) {
    open_shards(index);
  } else {
    throw UserError(directory, "holds no weights", "expected model.safetensors, or shards with model.safetensors.index.json");
  }
}

void ModelDir::open_shards(const std::string& index_path) {
  const json index = read_json(index_path);
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

at::Tensor ModelDir::tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  const SafetensorsFile& file = file_with(name);
  const std::vector<int64_t>& held = file.tensors().at(name).shape;
  if (held != shape)
    throw UserError(file.path(), "tensor `" + name + "` has shape " + shape_text(held),
                    "expected " + shape_text(shape) + " by config.json");
  return file.view(name);
}

void ModelDir::require_exactly(const std::vector<std::string>& names, const std::vector<std::string>& tolerated) const {
  std::set<std::string> expected(names.begin(), names.end());
  for (const std::string& name : names) file_with(name);
  expected.insert(tolerated.begin(), tolerated.end());
  for (const auto& [name, file] : file_of_)
    if (!expected.count(name))
      throw UserError(file->path(), "holds tensor `" + name + "`, which this model does not have",
                      "the nearest name it has is `" + nearest_name(name, names) + "`");
}

void write_model_dir(const std::string& directory, const json& config, const std::map<std::string, at::Tensor>& tensors,
                     const std::string& tokenizer_from) {
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) throw PeerError(directory + ": cannot be created: " + failed.message());
  write_durable(directory + "/config.json", config.dump(2) + "\n");
  if (!tokenizer_from.empty()) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
                             "added_tokens.json", "generation_config.json", "chat_template.jinja"}) {
      const fs::path source = fs::path(tokenizer_from) / name, target = fs::path(directory) / name;
      if (fs::is_regular_file(source) && !(fs::exists(target) && fs::equivalent(source, target)))
        write_durable(target.string(), read_whole(source.string()));
    }
  }
  write_safetensors(directory + "/model.safetensors", tensors, {{"format", "pt"}});
  sync_directory(directory);
}

}  // namespace tandem::checkpoint
