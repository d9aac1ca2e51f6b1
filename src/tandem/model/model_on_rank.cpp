// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/model_on_rank.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <cstring>
#include <iomanip>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/checkpoint/model_dir.h"

namespace tandem::model {

ModelOnRank::ModelOnRank(const ModelConfig& config, const RankPlace& place, const kernel::Kernels& kernels,
                         const device::Home& home)
    : table_(parameter_table(config, place.layout, place.rank)),
      decoder_(config, kernels, place),
      memory_(std::make_unique<device::Swappable>(home, table_.num_elements, kernels.dtype())),
      values_(memory_->tensor()),
      parameters_(make_parameters(table_, values_, at::Tensor())) {}

ModelOnRank::ModelOnRank(const ModelConfig& config, const RankPlace& place, const kernel::Kernels& kernels,
                         const at::Tensor& values)
    : table_(parameter_table(config, place.layout, place.rank)),
      decoder_(config, kernels, place),
      values_(values),
      parameters_(make_parameters(table_, values_, at::Tensor())) {
  TANDEM_CHECK(values.numel() == table_.num_elements, values.numel(), " values for ", table_.num_elements);
}

namespace {

// A file may hold the head that config.json says is the embeddings: then it must be these. Nor is a head that is missing made up.
void check_head(const ModelConfig& config, const checkpoint::ModelDir& files) {
  constexpr const char *kHead = "lm_head.weight", *kEmbedding = "model.embed_tokens.weight";
  const std::string path = files.path() + "/config.json";
  if (config.num_labels > 0) return;
  if (!config.tied_embeddings && !files.contains(kHead))
    throw UserError(files.path(), join_text("holds no tensor `", kHead, "`, and its config.json does not say that the head is tied"),
                    "all weights, or \"tie_word_embeddings\": true in config.json where the embeddings are the head");
  if (!config.tied_embeddings || !files.contains(kHead)) return;
  const at::Tensor head = files.tensor(kHead), embedding = files.tensor(kEmbedding);
  const bool same = head.scalar_type() == embedding.scalar_type()
                        ? head.sizes() == embedding.sizes() && std::memcmp(head.data_ptr(), embedding.data_ptr(), head.nbytes()) == 0
                        : head.sizes() == embedding.sizes() && at::equal(head.to(at::kFloat), embedding.to(at::kFloat));
  if (!same)
    throw UserError(path, join_text("\"tie_word_embeddings\" is true, and `", kHead, "` beside it differs from `", kEmbedding, "`"),
                    "false, to use both as transformers does, or weights without that head");
}

}  // namespace

void ModelOnRank::load(const std::string& dir, Head head) {
  const double begin = now_s();
  const checkpoint::ModelDir files(dir);
  std::vector<std::string> names;
  const auto begins = [&](const std::string& name) {
    return head == Head::kMayBegin && name == family::kScoreWeight && !files.contains(name);
  };
  for (const family::Parameter& p : family::parameters(config()))
    if (!begins(p.name)) names.push_back(p.name);
  // A head that is tied, or that scores took the place of, may be stored all the same. So may DeepSeek's layer that predicts a
  // further token, and the frequencies of positions, which older checkpoints hold; these follow from config.json.
  const std::string further = "model.layers." + std::to_string(config().num_layers) + ".";
  const bool has_own_head = !config().tied_embeddings && config().num_labels == 0;
  check_head(config(), files);
  files.require_exactly(names, [&](const std::string& name) {
    return (!has_own_head && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq") ||
           (config().family == "deepseek_v3" && name.starts_with(further));
  });
  load_parameters(table_, values_, [&](const TensorSpec& spec, at::Tensor to) {
    if (begins(spec.name)) to.zero_();
    else files.read(spec, std::move(to));
  });
  if (table_.rank > 0) return;
  const bool rounds = values_.scalar_type() == at::kBFloat16 && std::ranges::any_of(table_.entries, [&](const ParameterEntry& e) {
    const std::string& name = e.parameter.name;
    return !e.parameter.in_float() && files.contains(name) && files.entry(name).dtype == at::kFloat;
  });
  const double seconds = now_s() - begin;
  log::info("loaded ", bytes_text(files.bytes_read()), " of the ", bytes_text(files.file_bytes()), " in ", dir,
            rounds ? ", of which float32 is rounded to bfloat16," : "", std::fixed,
            std::setprecision(2), " in ", seconds, " s, ", static_cast<double>(files.bytes_read()) / 1e9 / seconds, " GB/s");
}

c10::ScalarType dtype_of(const std::string& name, const std::string& where) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  throw UserError(where, "dtype is '" + name + "'", "float32 or bfloat16");
}

}  // namespace tandem::model
