// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/model_export.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/file/durable_file.h"

namespace tandem::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Names part by part as transformers 5 sorts them: numbers by value and before texts, so that layer 2 precedes layer 10.
bool comes_before(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string_view part = a.substr(0, a.find('.')), other = b.substr(0, b.find('.'));
    const bool number = part.find_first_not_of("0123456789") == std::string_view::npos;
    const bool other_number = other.find_first_not_of("0123456789") == std::string_view::npos;
    if (number != other_number) return number;
    if (number && part.size() != other.size()) return part.size() < other.size();
    if (part != other) return part < other;
    a.remove_prefix(std::min(a.size(), part.size() + 1));
    b.remove_prefix(std::min(b.size(), other.size() + 1));
  }
  return a.empty() && !b.empty();
}

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

bool is_weight_file(const std::string& name) {
  return name == kSingleFile || name == kIndexFile || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

std::string index_text(const std::vector<Shard>& shards) {
  int64_t bytes = 0;
  json places = json::object();
  for (const Shard& shard : shards)
    for (const TensorInfo& t : shard.tensors) {
      bytes += t.num_bytes();
      places[t.name] = shard.file;
    }
  return json({{"metadata", {{"total_size", bytes}}}, {"weight_map", places}}).dump(2) + "\n";
}

// All files are written before one takes its name. Between the renames no index names them: a crash there leaves the whole
// earlier model.safetensors, or a directory that says it has no weights.
void write_weights(const std::string& directory, const ModelSource& source, int64_t max_shard_bytes, Sums& sums) {
  const std::vector<Shard> shards = plan_shards(source.tensors, max_shard_bytes);
  const bool single = shards.front().file == kSingleFile;
  std::vector<DurableFile> files;
  for (const Shard& shard : shards) {
    files.emplace_back(directory + "/" + shard.file);
    write_safetensors(files.back(), shard.tensors, source.values, {{"format", "pt"}});
    files.back().close();
  }
  std::error_code failed;
  if (!single) fs::remove(directory + "/" + kIndexFile, failed);
  for (DurableFile& file : files) {
    sums[fs::path(file.path()).filename()] = file.commit();
  }
  if (!single) sums[kIndexFile] = write_durable(directory + "/" + kIndexFile, index_text(shards));
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed))
    if (const std::string name = entry.path().filename(); is_weight_file(name) && !sums.count(name)) left.push_back(entry.path());
  for (const fs::path& path : left)
    if (!fs::remove(path, failed) || failed) throw PeerError(path.string() + ": cannot be removed: " + failed.message());
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
                           "added_tokens.json", "generation_config.json", "chat_template.jinja"}) {
    const fs::path path = fs::path(directory) / name;
    if (fs::symlink_status(path).type() != fs::file_type::not_found) files[name] = read_file(path.string());
  }
  return files;
}

std::vector<Shard> plan_shards(std::vector<TensorInfo> tensors, int64_t max_shard_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return comes_before(a.name, b.name); });
  std::vector<Shard> shards;
  Shard open;
  int64_t held = 0;
  for (TensorInfo& t : tensors) {
    const int64_t bytes = t.num_bytes();
    if (bytes > max_shard_bytes) {
      shards.push_back({"", {std::move(t)}});
      continue;
    }
    if (held + bytes > max_shard_bytes) {
      shards.push_back(std::move(open));
      open = {}, held = 0;
    }
    open.tensors.push_back(std::move(t));
    held += bytes;
  }
  if (!open.tensors.empty() || shards.empty()) shards.push_back(std::move(open));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? kSingleFile : shard_name(i, shards.size());
    sort_for_file(shards[i].tensors);
  }
  return shards;
}

Sums write_model_dir(const std::string& directory, const json& config, const ModelSource& source, const ExportOptions& options) {
  Sums sums;
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) throw PeerError(directory + ": cannot be created: " + failed.message());
  sums["config.json"] = write_durable(directory + "/config.json", config.dump(2) + "\n");
  for (const auto& [name, bytes] : options.files) sums[name] = write_durable(directory + "/" + name, bytes);
  write_weights(directory, source, options.max_shard_bytes, sums);
  sync_directory(directory);
  return sums;
}

Sums write_model_dir(const std::string& directory, const json& config, const std::map<std::string, at::Tensor>& tensors,
                     const ExportOptions& options) {
  ModelSource source;
  for (const auto& [name, tensor] : tensors) source.tensors.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  source.values = [&](const std::string& name) { return tensors.at(name); };
  return write_model_dir(directory, config, source, options);
}

}  // namespace tandem::checkpoint
