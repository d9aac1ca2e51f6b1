// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/start_model.h"

#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include "tandem/checkpoint/model_export.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/parameters.h"
#include "tandem/text/tokenizer.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::runtime {

void write_random_model(const std::string& dir, const config::ModelOptions& o, int64_t seed) {
  const std::string tokenizer_dir = dir + ".tokenizer";
  text::write_char_tokenizer(tokenizer_dir, "0123456789+-*/= .,?", {"<pad>", "<eos>"});
  const text::Tokenizer tokenizer = text::Tokenizer::load(tokenizer_dir);
  model::ModelConfig c;
  c.family = "qwen2";
  c.vocab_size = (tokenizer.vocab_size() + 31) / 32 * 32;  // as kernels like it
  c.hidden_size = o.init_hidden;
  c.intermediate_size = o.init_intermediate;
  c.num_layers = o.init_layers;
  c.num_heads = o.init_heads;
  c.num_kv_heads = o.init_kv_heads;
  c.head_dim = o.init_hidden / o.init_heads;
  c.max_positions = o.init_max_positions;
  c.tied_embeddings = true;
  c.qkv_bias = true;
  c.eos_ids = {*tokenizer.eos_id()};
  const nlohmann::json json = model::to_json(c, "float32");
  (void)model::parse_config(json, "model.init_*");
  const model::ParameterTable table = model::parameter_table(c, {}, 0);
  at::Tensor flat = at::zeros({table.num_elements}, at::kFloat);
  model::initialize_parameters(table, flat, static_cast<uint64_t>(seed), o.init_deviation);
  std::map<std::string, at::Tensor> tensors;
  for (const model::ParameterEntry& e : table.entries) tensors[e.parameter.name] = table.view(flat, e);
  checkpoint::write_model_dir(dir, json, tensors, {.files = checkpoint::tokenizer_files(tokenizer_dir)});
}

}  // namespace tandem::runtime
