// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/export.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/strings.h"
#include "tandem/base/file/durable_file.h"
#include "tandem/checkpoint/model_export.h"
#include "tandem/comm/agree.h"

namespace tandem::policy {

namespace fs = std::filesystem;

// A folder of files.
struct Exporter::Part {
  std::string folder;
  std::vector<checkpoint::TensorInfo> tensors;  // in the order in which they are asked for
  bool merges;
  std::function<Sums(const std::string& dir, const checkpoint::TensorSource& values)> write;

  static int64_t room_of(const checkpoint::TensorInfo& t) { return (t.num_bytes() + 63) / 64 * 64; }
  int64_t num_bytes() const {
    int64_t bytes = 0;
    for (const checkpoint::TensorInfo& t : tensors) bytes += room_of(t);
    return bytes;
  }
  void write_into(const std::string& dir, const checkpoint::TensorSource& values, Sums& sums) const {
    for (const auto& [name, sum] : write(dir + "/" + folder, values)) sums[folder + "/" + name] = sum;
  }
};

// The tensors of a role as files ask for them, one after the other, on every rank in the same order. A matrix with adapters is merged
// in fp32 on its way.
struct Exporter::Stream {
  const TrainedRole& role;
  TrainedRole::Staging staging;
  bool is_behind;  // a run: then rank 0 may write for longer than the others may wait for it in a call

  void meet() const {
    if (is_behind) comm::meet(staging.group);
  }

  at::Tensor gather(const std::string& name, bool merges) const {
    meet();
    const auto adapters = merges ? role.adapters_of(name) : std::nullopt;
    if (!adapters) return role.gather(name, staging);
    const auto kept = [&](const std::string& adapter) {
      const at::Tensor values = role.gather(adapter, staging);
      return values.defined() ? values.clone() : values;
    };
    const at::Tensor a = kept(adapters->first), b = kept(adapters->second), base = role.gather(name, staging);
    return base.defined() ? model::merged_matrix(base, a, b, role.lora()->scale()) : base;
  }

  // `take` runs on rank 0 and asks for each tensor of the part once. Where it fails, the rest is gathered all the same, as the other ranks
  // are in the middle of it, and then all fail alike.
  void run(const Part& part, const std::function<void(const checkpoint::TensorSource&)>& take) const {
    size_t next = 0;
    const auto values = [&](const std::string& name) {
      TANDEM_CHECK(part.tensors[next].name == name, name, " is asked for where ", part.tensors[next].name, " is due");
      ++next;
      return gather(name, part.merges);
    };
    std::exception_ptr fault;
    try {
      if (staging.group.rank() == 0) take(values);
    } catch (...) {
      fault = std::current_exception();
    }
    for (; next < part.tensors.size(); ++next) (void)gather(part.tensors[next].name, part.merges);
    meet();
    comm::run_alike(staging.group, [&] {
      if (fault) std::rethrow_exception(fault);
    });
  }
};

Exporter::Exporter(const config::RunConfig& config, const Ranks& ranks, std::string model_dir)
    : config_(config), ranks_(ranks), model_dir_(std::move(model_dir)) {
  std::error_code failed;
  const fs::path resolved = fs::canonical(model_dir_, failed);
  if (failed) throw UserError(model_dir_, "cannot be resolved: " + failed.message(), "a Hugging Face model directory");
  model_dir_ = resolved.string();
  if (!ranks.is_first()) return;
  files_ = checkpoint::tokenizer_files(model_dir_);
  const std::string& file = config.data.chat_template;
  if (!file.empty()) files_["chat_template.jinja"] = read_file(file);
}

Exporter::Part Exporter::model_part(const TrainedRole& role) const {
  const checkpoint::ExportOptions options{*parse_bytes(config_.checkpoint.max_shard_size), files_};
  const nlohmann::json config = model::to_json(role.config(), role.lora() ? "float32" : config_.model.dtype.c_str());
  Part part{"hf", {}, true, {}};
  for (const checkpoint::Shard& shard : checkpoint::plan_shards(role.tensors(), options.max_shard_bytes))
    part.tensors.insert(part.tensors.end(), shard.tensors.begin(), shard.tensors.end());
  part.write = [=, tensors = part.tensors](const std::string& dir, const checkpoint::TensorSource& values) {
    return checkpoint::write_model_dir(dir, config, {tensors, values}, options);
  };
  return part;
}

Exporter::Part Exporter::adapter_part(const TrainedRole& role) const {
  const model::LoraOptions& lora = *role.lora();
  const nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", model_dir_},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"target_modules", model::lora_targets(role.config(), lora, "model.lora_targets")}};
  Part part{"adapter", role.adapters(), false, {}};
  checkpoint::sort_for_file(part.tensors);
  part.write = [=, tensors = part.tensors](const std::string& dir, const checkpoint::TensorSource& values) {
    std::error_code failed;
    fs::create_directories(dir, failed);
    if (failed) throw PeerError(dir + ": cannot be created: " + failed.message());
    Sums sums{{"adapter_config.json", write_durable(dir + "/adapter_config.json", config.dump(2))}};
    DurableFile file(dir + "/adapter_model.safetensors");
    checkpoint::write_safetensors(file, tensors, values, {{"format", "pt"}});
    sums["adapter_model.safetensors"] = file.commit();
    return sums;
  };
  return part;
}

// In the order in which they are written.
std::vector<Exporter::Part> Exporter::parts_of(const TrainedRole& role) const {
  std::vector<Part> parts;
  if (role.lora()) parts.push_back(adapter_part(role));
  parts.push_back(model_part(role));
  return parts;
}

Sums Exporter::write(const std::string& dir, const TrainedRole& role, comm::Group& group) const {
  const Stream stream{role, role.stage(group), &group != &ranks_.world};
  Sums sums;
  for (const Part& part : parts_of(role))
    stream.run(part, [&](const checkpoint::TensorSource& values) { part.write_into(dir, values, sums); });
  return sums;
}

int64_t Exporter::copy_bytes(const TrainedRole& role) const {
  int64_t bytes = 0, largest = 0;
  for (const Part& part : parts_of(role)) {
    bytes += part.num_bytes();
    for (const checkpoint::TensorInfo& t : part.tensors) largest = std::max(largest, t.num_bytes());
  }
  return bytes + 2 * largest;  // TrainedRole::Staging
}

FileWriter Exporter::copy(const TrainedRole& role, device::Arena& host) const {
  const Stream stream{role, role.stage(ranks_.world), false};
  std::vector<std::pair<Part, std::map<std::string, at::Tensor>>> copied;
  for (Part& part : parts_of(role)) {
    std::map<std::string, at::Tensor> copies;
    stream.run(part, [&](const checkpoint::TensorSource& values) {
      const at::Tensor room = host.allocate("checkpoint", {part.num_bytes()}, at::kByte);
      int64_t at = 0;
      for (const checkpoint::TensorInfo& t : part.tensors) {
        const int64_t begin = std::exchange(at, at + Part::room_of(t));
        copies[t.name] = room.narrow(0, begin, t.num_bytes()).view(t.dtype).view(t.shape).copy_(values(t.name));
      }
    });
    copied.emplace_back(std::move(part), std::move(copies));
  }
  return [copied = std::move(copied), writes = ranks_.is_first()](const std::string& dir) {
    Sums sums;
    for (const auto& [part, copies] : copied)
      if (writes) part.write_into(dir, [&](const std::string& name) { return copies.at(name); }, sums);
    return sums;
  };
}

bool holds_model(const std::string& dir) {
  return fs::exists(dir + "/model.safetensors") || fs::exists(dir + "/model.safetensors.index.json");
}

}  // namespace tandem::policy
