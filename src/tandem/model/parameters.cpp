// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/parameters.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/model/kernel/packed.h"

namespace tandem::model {
namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes of fp32

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

std::string shape_text(c10::IntArrayRef shape) {
  std::string text = "[";
  for (int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

at::Tensor cut(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.begin.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
  return whole;
}

uint64_t hash_name(const std::string& name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

bool same_slot(const family::Parameter& a, const family::Parameter& b) { return a.slot == b.slot && a.layer == b.layer; }

}  // namespace

at::Tensor ParameterTable::view(const at::Tensor& flat, const ParameterEntry& entry) const {
  return flat.narrow(0, entry.offset, entry.num_elements).view(entry.box.shape());
}

ParameterTable parameter_table(const ModelConfig& config, const Layout& layout, int rank) {
  ParameterTable table{config, layout, rank, {}, 0};
  int64_t offset = 0;
  for (const family::Parameter& p : family::parameters(config)) {
    const Box box = box_of(p, config, layout.tp, layout.tp_rank(rank));
    int replicas = 1;
    if (p.split == family::Split::kNone || p.split == family::Split::kPerHead) replicas = layout.tp;
    if (p.split == family::Split::kKvRows) replicas = std::max<int>(1, layout.tp / static_cast<int>(config.num_kv_heads));
    if (table.entries.empty() || !same_slot(table.entries.back().parameter, p)) offset = round_up(offset, kAlignElements);
    table.entries.push_back({p, box, offset, box.num_elements(), replicas});
    offset += box.num_elements();
  }
  table.num_elements = round_up(offset, kAlignElements * layout.dp);
  return table;
}

ModelParameters make_parameters(const ParameterTable& table, const at::Tensor& values, const at::Tensor& grads) {
  ModelParameters model;
  model.layers.resize(static_cast<size_t>(table.config.num_layers));
  const auto slot_of = [&](const family::Parameter& p) -> kernel::Parameter& {
    switch (p.slot) {
      case family::Slot::kEmbedding: return model.embedding;
      case family::Slot::kFinalNorm: return model.final_norm;
      case family::Slot::kHead: return model.head;
      default: break;
    }
    LayerParameters& layer = model.layers[static_cast<size_t>(p.layer)];
    switch (p.slot) {
      case family::Slot::kInputNorm: return layer.input_norm;
      case family::Slot::kQkvWeight: return layer.qkv;
      case family::Slot::kQkvBias: return layer.qkv_bias;
      case family::Slot::kHeadNorm: return layer.head_norm;
      case family::Slot::kOutput: return layer.output;
      case family::Slot::kPostNorm: return layer.post_norm;
      case family::Slot::kGateUp: return layer.gate_up;
      default: return layer.down;
    }
  };
  for (size_t i = 0; i < table.entries.size();) {
    size_t end = i;
    int64_t elements = 0;
    for (; end < table.entries.size() && same_slot(table.entries[end].parameter, table.entries[i].parameter); ++end)
      elements += table.entries[end].num_elements;
    const ParameterEntry& first = table.entries[i];
    std::vector<int64_t> shape = {-1};
    if (first.box.begin.size() == 2) shape.push_back(first.box.extent(1));
    kernel::Parameter& slot = slot_of(first.parameter);
    slot.value = values.narrow(0, first.offset, elements).view(shape);
    if (grads.defined()) slot.grad = grads.narrow(0, first.offset, elements).view(shape);
    i = end;
  }
  if (table.config.tied_embeddings) model.head = model.embedding;
  return model;
}

int64_t pack_parameters(ModelParameters& parameters) {
  int64_t bytes = 0;
  const auto pack = [&](kernel::Parameter& p) {
    p.packed = kernel::pack_weight(p.value);
    bytes += p.packed.bytes();
  };
  for (LayerParameters& layer : parameters.layers)
    for (kernel::Parameter* p : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) pack(*p);
  if (parameters.head.value.scalar_type() == at::kFloat) pack(parameters.head);
  return bytes;
}

void load_parameters(const ParameterTable& table, at::Tensor& values, const std::function<at::Tensor(const std::string&)>& read,
                     const std::string& where) {
  for (const ParameterEntry& e : table.entries) {
    const at::Tensor whole = read(e.parameter.name);
    if (whole.sizes() != c10::IntArrayRef(e.parameter.shape))
      throw UserError(where, e.parameter.name + " has shape " + shape_text(whole.sizes()), "config.json says " + shape_text(e.parameter.shape));
    table.view(values, e).copy_(cut(whole, e.box));
  }
}

void initialize_parameters(const ParameterTable& table, at::Tensor& values, uint64_t seed, double deviation) {
  for (const ParameterEntry& e : table.entries) {
    at::Tensor view = table.view(values, e);
    if (e.parameter.shape.size() == 1) {
      const bool is_bias = e.parameter.slot == family::Slot::kQkvBias;
      view.fill_(is_bias ? 0.0 : 1.0);
      continue;
    }
    at::Tensor whole = at::empty(e.parameter.shape, at::kFloat);
    RandomStream stream(seed, hash_name(e.parameter.name));
    float* out = whole.data_ptr<float>();
    for (int64_t i = 0; i < whole.numel(); ++i) out[i] = static_cast<float>(stream.normal() * deviation);
    view.copy_(cut(whole, e.box));
  }
}

}  // namespace tandem::model
