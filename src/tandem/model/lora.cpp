// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/lora.h"

#include <ATen/ops/addmm.h>

#include <algorithm>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::model {
namespace {

using family::Parameter;
using family::Slot;
using family::Split;

constexpr const char* kAll = "all-linear";

bool can_adapt(Slot slot) {
  static constexpr Slot kLinear[] = {Slot::kQkvWeight, Slot::kOutput, Slot::kGateUp, Slot::kDown,         Slot::kQDown,
                                     Slot::kQUp,       Slot::kKvDown, Slot::kKvUp,   Slot::kSharedGateUp, Slot::kSharedDown};
  return std::find(std::begin(kLinear), std::end(kLinear), slot) != std::end(kLinear);
}

std::string module_of(const Parameter& p) { return p.name.substr(0, p.name.rfind('.')); }

std::string target_of(const Parameter& p) {
  const std::string module = module_of(p);
  return module.substr(module.rfind('.') + 1);
}

// How A and B of a matrix are cut. What every rank holds whole but feeds with its own rows or columns is kPartial.
std::pair<Split, Split> splits_of(Split matrix) {
  switch (matrix) {
    case Split::kRows: return {Split::kPartial, Split::kRows};
    case Split::kKvRows: return {Split::kPartial, Split::kKvRows};
    case Split::kColumns: return {Split::kColumns, Split::kPartial};
    default: return {Split::kNone, Split::kNone};
  }
}

}  // namespace

bool is_adapted(const Parameter& p, const LoraOptions& o) {
  const auto wants = [&](const std::string& name) { return std::find(o.targets.begin(), o.targets.end(), name) != o.targets.end(); };
  return can_adapt(p.slot) && (wants(kAll) || wants(target_of(p)));
}

std::pair<std::string, std::string> adapter_names(const Parameter& matrix) {
  const std::string name = "base_model.model." + module_of(matrix);
  return {name + ".lora_A.weight", name + ".lora_B.weight"};
}

std::vector<Parameter> lora_parameters(const ModelConfig& config, const LoraOptions& o) {
  std::vector<Parameter> all;
  for (const Parameter& p : family::parameters(config)) {
    if (!is_adapted(p, o)) continue;
    const auto [name_a, name_b] = adapter_names(p);
    const auto [split_a, split_b] = splits_of(p.split);
    all.push_back({name_a, {o.rank, p.shape[1]}, split_a, Slot::kAdapter, p.layer});
    all.push_back({name_b, {p.shape[0], o.rank}, split_b, Slot::kAdapter, p.layer});
  }
  return all;
}

std::vector<std::string> lora_targets(const ModelConfig& config, const LoraOptions& o, const std::string& where) {
  std::vector<std::string> known, chosen;
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const Parameter& p : family::parameters(config)) {
    if (can_adapt(p.slot)) add(known, target_of(p));
    if (is_adapted(p, o)) add(chosen, target_of(p));
  }
  std::string names = kAll;
  for (const std::string& name : known) names += ", " + name;
  if (o.targets.empty()) throw UserError(where, "names no matrix", "some of " + names);
  for (const std::string& name : o.targets)
    if (name != kAll && std::find(known.begin(), known.end(), name) == known.end())
      throw UserError(where, "no adapter goes on `" + name + "` of a " + config.family, "some of " + names);
  return chosen;
}

at::Tensor merged_matrix(const at::Tensor& base, const at::Tensor& a, const at::Tensor& b, double scale) {
  return at::addmm(base.to(at::kFloat), b, a, 1, scale);
}

Lora::Lora(const ParameterTable& base, const LoraOptions& o, const at::Tensor& base_values, device::Arena& arena)
    : base_(make_parameters(base, base_values, at::Tensor())),
      table_(parameter_table(base.config, base.layout, base.rank, lora_parameters(base.config, o))),
      values_(arena.allocate("lora", {table_.num_elements}, at::kFloat)),
      scale_(o.scale()) {
  int64_t a_entry = 0, row = 0;
  const Parameter* slot = nullptr;
  bool is_new_slot = true;
  for (const ParameterEntry& e : base.entries) {
    if (!slot || !family::same_slot(*slot, e.parameter)) row = 0, is_new_slot = true;
    slot = &e.parameter;
    const int64_t first_row = std::exchange(row, row + e.box.extent(0));
    if (!is_adapted(e.parameter, o)) continue;
    if (std::exchange(is_new_slot, false)) slots_.emplace_back();
    slots_.back().chosen.push_back({e.parameter, first_row, std::exchange(a_entry, a_entry + 2)});
  }
  TANDEM_CHECK(a_entry == std::ssize(table_.entries), "every adapter has its matrix");
  place_factors(o.rank, base_values.scalar_type(), arena);
}

// One after the other in one piece of memory.
void Lora::place_factors(int64_t rank, at::ScalarType dtype, device::Arena& arena) {
  std::vector<std::pair<at::Tensor*, std::vector<int64_t>>> places;
  int64_t elements = 0;
  for (AdaptedSlot& slot : slots_) {
    const at::Tensor& value = base_.slot_of(slot.chosen.front().parameter).value;
    const int64_t ranks = rank * std::ssize(slot.chosen);
    places.push_back({&slot.a_RK, {ranks, value.size(1)}});
    places.push_back({&slot.b_NR, {value.size(0), ranks}});
    elements += ranks * (value.size(0) + value.size(1));
  }
  const at::Tensor flat = arena.allocate("lora", {elements}, dtype).zero_();
  int64_t first = 0;
  for (const auto& [place, shape] : places) {
    const int64_t n = shape[0] * shape[1];
    *place = flat.narrow(0, std::exchange(first, first + n), n).view(shape);
  }
}

at::Tensor Lora::adapter(int64_t entry, const at::Tensor& flat) const {
  return flat.defined() ? table_.view(flat, table_.entries[static_cast<size_t>(entry)]) : at::Tensor();
}

void Lora::start(uint64_t seed) {
  for (const AdaptedSlot& slot : slots_)
    for (const Chosen& c : slot.chosen) {
      const ParameterEntry& a = table_.entries[static_cast<size_t>(c.a_entry)];
      const double bound = 1 / std::sqrt(static_cast<double>(c.parameter.shape[1]));  // as PEFT: uniform
      RandomStream stream = stream_of(a.parameter.name, seed);
      fill_box(a, table_.view(values_, a), [&] { return (2 * stream.uniform() - 1) * bound; });
      adapter(c.a_entry + 1, values_).zero_();
    }
  refresh();
}

// Where b_NR has rows of one matrix and ranks of another's adapter, it stays zero.
void Lora::refresh() {
  for (const AdaptedSlot& slot : slots_) {
    int64_t column = 0;
    for (const Chosen& c : slot.chosen) {
      const at::Tensor a = adapter(c.a_entry, values_), b = adapter(c.a_entry + 1, values_);
      const int64_t first = std::exchange(column, column + a.size(0));
      slot.a_RK.narrow(0, first, a.size(0)).copy_(a);
      slot.b_NR.narrow(0, c.first_row, b.size(0)).narrow(1, first, a.size(0)).copy_(b.mul(scale_));
    }
  }
}

ModelParameters Lora::adapted(const at::Tensor& grads) const {
  ModelParameters model = base_;
  model.adapted = true;
  for (const AdaptedSlot& slot : slots_) {
    op::Parameter& p = model.slot_of(slot.chosen.front().parameter);
    p.a_RK = slot.a_RK, p.b_NR = slot.b_NR;
    for (const Chosen& c : slot.chosen) {
      const int64_t a = c.a_entry, b = c.a_entry + 1;
      if (grads.defined())
        p.adapters.push_back({c.first_row, adapter(a, values_), adapter(b, values_), adapter(a, grads), adapter(b, grads), scale_});
    }
  }
  return model;
}

}  // namespace tandem::model
