// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/export.h"

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/strings.h"
#include "tandem/checkpoint/durable_file.h"
#include "tandem/checkpoint/model_export.h"
#include "tandem/comm/agree.h"

namespace tandem::policy {

namespace fs = std::filesystem;

// The tensors of a role as files ask for them, one after the other, on every rank in the same order. A matrix with adapters is merged
// in fp32 on its way.
struct Exporter::Stream {
  const Ranks& ranks;
  TrainedRole& role;
  TrainedRole::Staging staging;

  at::Tensor gather(const std::string& name, bool merges) const {
    const auto adapters = merges ? role.adapters_of(name) : std::nullopt;
    if (!adapters) return role.gather(name, staging);
    const auto kept = [&](const std::string& adapter) {
      const at::Tensor values = role.gather(adapter, staging);
      return values.defined() ? values.clone() : values;
    };
    const at::Tensor a = kept(adapters->first), b = kept(adapters->second), base = role.gather(name, staging);
    return base.defined() ? model::merged_matrix(base, a, b, role.lora()->scale()) : base;
  }

  // `write` runs on rank 0 and asks for each of `order` once. Where it fails, the rest is gathered all the same, as the other ranks
  // are in the middle of it, and then all fail alike.
  void run(const std::vector<std::string>& order, bool merges, const std::function<void(const checkpoint::TensorSource&)>& write) const {
    size_t next = 0;
    const auto values = [&](const std::string& name) {
      TANDEM_CHECK(order[next] == name, name, " is asked for where ", order[next], " is due");
      ++next;
      return gather(name, merges);
    };
    std::exception_ptr fault;
    try {
      if (ranks.is_first()) write(values);
    } catch (...) {
      fault = std::current_exception();
    }
    for (; next < order.size(); ++next) (void)gather(order[next], merges);
    comm::run_alike(ranks.world, [&] {
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

void Exporter::write_model(const std::string& dir, const Stream& stream) const {
  const checkpoint::ExportOptions options{*parse_bytes(config_.checkpoint.max_shard_size), files_};
  const std::vector<checkpoint::TensorInfo> tensors = stream.role.tensors();
  std::vector<std::string> order;
  for (const checkpoint::Shard& shard : checkpoint::plan_shards(tensors, options.max_shard_bytes))
    for (const checkpoint::TensorInfo& t : shard.tensors) order.push_back(t.name);
  const nlohmann::json config = model::to_json(stream.role.config(), stream.role.lora() ? "float32" : config_.model.dtype.c_str());
  stream.run(order, true, [&](const checkpoint::TensorSource& values) {
    checkpoint::write_model_dir(dir, config, {tensors, values}, options);
  });
}

void Exporter::write_adapter(const std::string& dir, const Stream& stream) const {
  const model::LoraOptions& lora = *stream.role.lora();
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
      {"target_modules", model::lora_targets(stream.role.config(), lora, "model.lora_targets")}};
  std::vector<checkpoint::TensorInfo> tensors = stream.role.adapters();
  checkpoint::sort_for_file(tensors);
  std::vector<std::string> order;
  for (const checkpoint::TensorInfo& t : tensors) order.push_back(t.name);
  stream.run(order, false, [&](const checkpoint::TensorSource& values) {
    std::error_code failed;
    fs::create_directories(dir, failed);
    if (failed) throw PeerError(dir + ": cannot be created: " + failed.message());
    checkpoint::write_durable(dir + "/adapter_config.json", config.dump(2));
    checkpoint::DurableFile file(dir + "/adapter_model.safetensors");
    checkpoint::write_safetensors(file, tensors, values, {{"format", "pt"}});
    file.commit();
  });
}

void Exporter::write(const std::string& dir, TrainedRole& role) const {
  const Stream stream{ranks_, role, role.stage()};
  if (role.lora()) write_adapter(dir + "/adapter", stream);
  write_model(dir + "/hf", stream);
}

bool holds_model(const std::string& dir) {
  return fs::exists(dir + "/model.safetensors") || fs::exists(dir + "/model.safetensors.index.json");
}

}  // namespace tandem::policy
