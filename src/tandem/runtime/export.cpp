// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/export.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/checkpoint/durable_file.h"
#include "tandem/checkpoint/model_dir.h"
#include "tandem/checkpoint/safetensors.h"

namespace tandem::runtime {
namespace {

nlohmann::json peft_config(const model::ModelConfig& config, const model::LoraOptions& lora, const std::string& model_dir) {
  return {{"peft_type", "LORA"},      {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", std::filesystem::absolute(model_dir).lexically_normal().string()},
          {"r", lora.rank},           {"lora_alpha", lora.alpha},
          {"lora_dropout", 0.0},      {"bias", "none"},
          {"fan_in_fan_out", false},  {"inference_mode", true},
          {"target_modules", model::lora_targets(config, lora, "model.lora_targets")}};
}

}  // namespace

Exported gather_export(Actor& actor) { return {actor.gather(), actor.gather_adapters()}; }

void write_export(const std::string& dir, const Actor& actor, const Exported& exported, const std::string& model_dir) {
  const model::ModelConfig& config = actor.train_model().config();
  if (actor.lora()) {
    const std::string adapter = dir + "/adapter";
    std::filesystem::create_directories(adapter);
    checkpoint::write_safetensors(adapter + "/adapter_model.safetensors", exported.adapters, {{"format", "pt"}});
    checkpoint::write_durable(adapter + "/adapter_config.json", peft_config(config, *actor.lora(), model_dir).dump(2));
  }
  const bool is_float = exported.weights.begin()->second.scalar_type() == at::kFloat;
  checkpoint::write_model_dir(dir + "/hf", model::to_json(config, is_float ? "float32" : "bfloat16"), exported.weights, model_dir);
}

}  // namespace tandem::runtime
