// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/export.h"

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/bytes.h"
#include "tandem/base/check.h"
#include "tandem/checkpoint/durable_file.h"
#include "tandem/checkpoint/model_export.h"
#include "tandem/text/json_file.h"

namespace tandem::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate = "/chat_template.jinja";

}  // namespace

Exporter::Exporter(RankContext& context, std::string model_dir) : context_(context), model_dir_(std::move(model_dir)) {
  const std::string& file = context.config.data.chat_template;
  if (!file.empty()) chat_template_ = text::read_file(file);
}

void Exporter::write_model(const std::string& dir, Actor& actor) const {
  const checkpoint::ExportOptions options{*parse_bytes(context_.config.checkpoint.max_shard_size), model_dir_};
  checkpoint::ModelSource source{actor.tensors(), {}};
  std::vector<std::string> order;
  for (const checkpoint::Shard& shard : checkpoint::plan_shards(source.tensors, options.max_shard_bytes))
    for (const checkpoint::TensorInfo& t : shard.tensors) order.push_back(t.name);
  size_t next = 0;
  source.values = [&](const std::string& name) {
    TANDEM_CHECK(order[next] == name, name, " is asked for where ", order[next], " is due");
    ++next;
    return actor.gather(name);
  };
  std::exception_ptr fault;
  try {
    const char* dtype = context_.gemm.dtype() == at::kFloat ? "float32" : "bfloat16";
    if (context_.is_first()) checkpoint::write_model_dir(dir, model::to_json(actor.train_model().config(), dtype), source, options);
    if (context_.is_first() && !chat_template_.empty()) checkpoint::write_durable(dir + kTemplate, chat_template_);
  } catch (...) {
    fault = std::current_exception();  // the other ranks are in the middle of it
  }
  for (; next < order.size(); ++next) actor.gather(order[next]);
  if (fault) std::rethrow_exception(fault);
}

void Exporter::write_adapter(const std::string& dir, const Actor& actor, const std::map<std::string, at::Tensor>& tensors) const {
  const model::LoraOptions& lora = *actor.lora();
  const nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", fs::absolute(model_dir_).lexically_normal().string()},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"target_modules", model::lora_targets(actor.train_model().config(), lora, "model.lora_targets")}};
  fs::create_directories(dir);
  checkpoint::write_safetensors(dir + "/adapter_model.safetensors", tensors, {{"format", "pt"}});
  checkpoint::write_durable(dir + "/adapter_config.json", config.dump(2));
}

void Exporter::write(const std::string& dir, Actor& actor) const {
  const std::map<std::string, at::Tensor> adapters = actor.gather_adapters();
  write_model(dir + "/hf", actor);
  if (!adapters.empty()) write_adapter(dir + "/adapter", actor, adapters);
}

bool holds_model(const std::string& dir) {
  return fs::exists(dir + "/model.safetensors") || fs::exists(dir + "/model.safetensors.index.json");
}

}  // namespace tandem::runtime
