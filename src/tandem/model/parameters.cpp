// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/parameters.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "tandem/base/check.h"

namespace tandem::model {
namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes of fp32

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

at::Tensor cut(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.begin.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
  return whole;
}

const std::map<family::Slot, op::Parameter LayerParameters::*>& members() {
  using family::Slot;
  using L = LayerParameters;
  static const std::map<Slot, op::Parameter L::*> kMembers = {
      {Slot::kInputNorm, &L::input_norm},        {Slot::kQkvWeight, &L::qkv},               {Slot::kQkvBias, &L::qkv_bias},
      {Slot::kHeadNorm, &L::head_norm},          {Slot::kOutput, &L::output},               {Slot::kPostNorm, &L::post_norm},
      {Slot::kGateUp, &L::gate_up},              {Slot::kDown, &L::down},                   {Slot::kQDown, &L::q_down},
      {Slot::kQDownNorm, &L::q_down_norm},       {Slot::kQUp, &L::q_up},                    {Slot::kKvDown, &L::kv_down},
      {Slot::kKvDownNorm, &L::kv_down_norm},     {Slot::kKvUp, &L::kv_up},                  {Slot::kRouter, &L::router},
      {Slot::kRouterBias, &L::router_bias},      {Slot::kExpertGateUp, &L::expert_gate_up}, {Slot::kExpertDown, &L::expert_down},
      {Slot::kSharedGateUp, &L::shared_gate_up}, {Slot::kSharedDown, &L::shared_down}};
  return kMembers;
}

}  // namespace

at::Tensor ParameterTable::view(const at::Tensor& flat, const ParameterEntry& entry) const {
  const int64_t n = entry.box.num_elements();
  if (!entry.parameter.in_float() || flat.scalar_type() == at::kFloat) return flat.narrow(0, entry.offset, n).view(entry.box.shape());
  return flat.narrow(0, entry.offset, entry.num_elements).view(at::kFloat).narrow(0, 0, n);
}

at::Tensor ParameterTable::words(const at::Tensor& flat, const ParameterEntry& entry) const {
  return entry.parameter.in_float() ? flat.narrow(0, entry.offset, entry.num_elements) : view(flat, entry);
}

bool ParameterTable::adds_over_tp(const ParameterEntry& e) const {
  using family::Split;
  if (!e.parameter.trained || layout.tp == 1 || e.parameter.expert >= 0) return false;
  const Split split = e.parameter.split;
  return split == Split::kPartial || split == Split::kNone || (split == Split::kKvRows && e.replicas > 1);
}

bool ParameterTable::holds_first(const ParameterEntry& e) const {
  const int in_stage = rank % layout.stage_ranks();
  if (e.parameter.expert >= 0) return in_stage / (layout.ep * layout.expert_tp()) == 0;
  if (in_stage / layout.tp > 0) return false;
  const bool is_embedding = e.parameter.slot == family::Slot::kEmbedding;
  return is_embedding ? layout.pp_rank(rank) == 0 : layout.tp_rank(rank) % e.replicas == 0;
}

ParameterTable parameter_table(const ModelConfig& config, const Layout& layout, int rank) {
  return parameter_table(config, layout, rank, family::parameters(config));
}

namespace {

int replicas_of(const family::Parameter& p, const ModelConfig& config, const Layout& layout) {
  if (p.expert >= 0) return 1;
  if (p.split == family::Split::kNone || p.split == family::Split::kPartial) return layout.tp;
  if (p.split == family::Split::kKvRows) return std::max<int>(1, layout.tp / static_cast<int>(config.num_kv_heads));
  return p.slot == family::Slot::kEmbedding && config.has_tied_head() && layout.pp > 1 ? 2 : 1;
}

// The layer that a parameter lies with.
int64_t place_of(const family::Parameter& p, int64_t last_layer) {
  if (p.slot == family::Slot::kEmbedding) return -1;
  return p.layer >= 0 ? p.layer : last_layer;
}

// Appends the entries of one kind, and gives each layer its range of them.
void add_entries(ParameterTable& table, std::span<const family::Parameter> held, FlatRange LayerRanges::*kind, int ranks) {
  int64_t offset = table.num_elements;
  size_t next = 0;
  for (LayerRanges& layer : table.layers) {
    FlatRange& range = layer.*kind;
    range.begin = offset;
    for (bool first = true; next < held.size() && place_of(held[next], table.layers.back().layer) == layer.layer; ++next, first = false) {
      const family::Parameter& p = held[next];
      if (first || !family::same_slot(held[next - 1], p)) offset = round_up(offset, kAlignElements);
      const Box box = box_of(p, table.config, table.layout, table.rank);
      table.entries.push_back({p, box, offset, p.words(box.num_elements()), replicas_of(p, table.config, table.layout)});
      offset += table.entries.back().num_elements;
    }
    offset = range.end = range.begin + round_up(offset - range.begin, kAlignElements * ranks);
  }
  TANDEM_CHECK(next == held.size(), "a parameter without a layer");
  table.num_elements = offset;
}

}  // namespace

ParameterTable parameter_table(const ModelConfig& config, const Layout& layout, int rank, const std::vector<family::Parameter>& which) {
  ParameterTable table{config, layout, rank, {}, {}, 0};
  std::vector<family::Parameter> held;
  std::vector<int32_t> numbers;
  int32_t number = 0;
  for (const family::Parameter& p : flat_order(which)) {
    if (holds(layout, rank, p, config)) held.push_back(p), numbers.push_back(number);
    ++number;
  }
  std::set<int64_t> layers;
  for (const family::Parameter& p : held)
    if (p.layer >= 0 || p.slot == family::Slot::kEmbedding) layers.insert(p.layer);
  for (int64_t layer : layers) table.layers.push_back({layer, {}, {}});
  const auto experts = std::ranges::find_if(held, [](const auto& p) { return p.expert >= 0; });
  add_entries(table, {held.begin(), experts}, &LayerRanges::dense, layout.data_ranks());
  add_entries(table, {experts, held.end()}, &LayerRanges::experts, layout.expert_data_ranks());
  for (size_t i = 0; i < numbers.size(); ++i) table.entries[i].number = numbers[i];
  return table;
}

op::Parameter& ModelParameters::slot_of(const family::Parameter& p) {
  if (p.layer >= 0) return layers[static_cast<size_t>(p.layer)].*members().at(p.slot);
  if (p.slot == family::Slot::kEmbedding) return embedding;
  if (p.slot == family::Slot::kScore) return score;
  return p.slot == family::Slot::kHead ? head : final_norm;
}

ModelParameters make_parameters(const ParameterTable& table, const at::Tensor& values, const at::Tensor& grads) {
  ModelParameters model;
  model.layers.resize(static_cast<size_t>(table.config.num_layers));
  for (size_t i = 0; i < table.entries.size();) {
    size_t end = i;
    int64_t elements = 0;
    for (; end < table.entries.size() && family::same_slot(table.entries[end].parameter, table.entries[i].parameter); ++end)
      elements += table.entries[end].num_elements;
    const ParameterEntry& first = table.entries[i];
    std::vector<int64_t> shape = {-1};
    if (first.box.begin.size() == 2) shape.push_back(first.box.extent(1));
    op::Parameter& slot = model.slot_of(first.parameter);
    slot.value = first.parameter.in_float() ? table.view(values, first) : values.narrow(0, first.offset, elements).view(shape);
    if (grads.defined() && first.parameter.trained) slot.grad = grads.narrow(0, first.offset, elements).view(shape);
    i = end;
  }
  if (table.config.has_tied_head()) model.head = model.embedding;
  return model;
}

std::vector<const void*> addresses_of(const ModelParameters& parameters) {
  std::vector<const void*> all;
  const auto add = [&](const op::Parameter& p) {
    for (const at::Tensor* each : {&p.value, &p.a_RK, &p.b_NR}) all.push_back(each->defined() ? each->data_ptr() : nullptr);
  };
  for (const op::Parameter* p : {&parameters.embedding, &parameters.final_norm, &parameters.head, &parameters.score}) add(*p);
  for (const LayerParameters& layer : parameters.layers)
    for (const auto& [slot, member] : members()) add(layer.*member);
  return all;
}

int64_t pack_parameters(ModelParameters& parameters, const kernel::Kernels& kernels) {
  int64_t bytes = 0;
  for (LayerParameters& layer : parameters.layers)
    for (op::Parameter* p : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down, &layer.shared_gate_up, &layer.shared_down,
                                 &layer.q_down, &layer.q_up, &layer.kv_down})
      if (p->value.defined()) bytes += op::pack(kernels, *p);
  op::Parameter& head = parameters.head;
  if (head.value.defined()) head.packed = kernels.product().pack_head(kernels.numerics(), head.value);
  return bytes + head.packed.num_bytes;
}

void load_parameters(const ParameterTable& table, at::Tensor& values, const std::function<void(const TensorSpec&, at::Tensor)>& read) {
  for (const ParameterEntry& e : table.entries) {
    const at::Tensor view = table.view(values, e), host = view.is_cpu() ? view : at::empty(view.sizes(), view.scalar_type());
    read({e.parameter.name, e.parameter.shape, e.box}, host);
    if (!view.is_cpu()) at::Tensor(view).copy_(host);
  }
}

// A rank's box of a random tensor: draw() in the order of the whole.
void fill_box(const ParameterEntry& entry, at::Tensor to, const std::function<double()>& draw) {
  at::Tensor whole = at::empty(entry.parameter.shape, at::kFloat);
  float* out = whole.data_ptr<float>();
  for (int64_t i = 0; i < whole.numel(); ++i) out[i] = static_cast<float>(draw());
  to.copy_(cut(whole, entry.box));
}

RandomStream stream_of(const std::string& name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ull;
  return {seed, hash};
}

void initialize_parameters(const ParameterTable& table, at::Tensor& values, uint64_t seed, double deviation) {
  for (const ParameterEntry& e : table.entries) {
    at::Tensor view = table.view(values, e);
    if (e.parameter.shape.size() == 1) {
      const bool is_bias = e.parameter.slot == family::Slot::kQkvBias || e.parameter.slot == family::Slot::kRouterBias;
      view.fill_(is_bias ? 0.0 : 1.0);
      continue;
    }
    RandomStream stream = stream_of(e.parameter.name, seed);
    fill_box(e, view, [&] { return stream.normal() * deviation; });
  }
}

}  // namespace tandem::model
