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

// W of one matrix, or of one rank's rows or columns of it.
void merge_matrix(const at::Tensor& to, const at::Tensor& base, const at::Tensor& a, const at::Tensor& b, double scale) {
  constexpr int64_t kRows = 1024;  // of fp32 at a time
  for (int64_t begin = 0; begin < b.size(0); begin += kRows) {
    const int64_t rows = std::min(kRows, b.size(0) - begin);
    const at::Tensor w0 = base.narrow(0, begin, rows).to(at::kFloat);
    to.narrow(0, begin, rows).copy_(at::addmm(w0, b.narrow(0, begin, rows), a, 1, scale).to(base.scalar_type()));
  }
}

}  // namespace

bool is_adapted(const Parameter& p, const LoraOptions& o) {
  const auto wants = [&](const std::string& name) { return std::find(o.targets.begin(), o.targets.end(), name) != o.targets.end(); };
  return can_adapt(p.slot) && (wants(kAll) || wants(target_of(p)));
}

std::vector<Parameter> lora_parameters(const ModelConfig& config, const LoraOptions& o) {
  std::vector<Parameter> all;
  for (const Parameter& p : family::parameters(config)) {
    if (!is_adapted(p, o)) continue;
    const std::string name = "base_model.model." + module_of(p);
    const auto [split_a, split_b] = splits_of(p.split);
    all.push_back({name + ".lora_A.weight", {o.rank, p.shape[1]}, split_a, Slot::kAdapter, p.layer});
    all.push_back({name + ".lora_B.weight", {p.shape[0], o.rank}, split_b, Slot::kAdapter, p.layer});
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

Lora::Lora(const ParameterTable& base, const LoraOptions& o, const at::Tensor& base_values, device::Arena& arena)
    : frozen_(make_parameters(base, base_values, at::Tensor())),
      table_(parameter_table(base.config, base.layout, base.rank, lora_parameters(base.config, o))),
      values_(arena.allocate("lora", {table_.num_elements}, at::kFloat)),
      scale_(o.scale()) {
  int64_t a_entry = 0, row = 0;
  const Parameter* slot = nullptr;
  for (const ParameterEntry& e : base.entries) {
    if (!slot || !family::same_slot(*slot, e.parameter)) row = 0;
    const bool new_slot = kept_.empty() || !family::same_slot(kept_.back().chosen.front().parameter, e.parameter);
    slot = &e.parameter;
    const int64_t first_row = std::exchange(row, row + e.box.extent(0));
    if (!is_adapted(e.parameter, o)) continue;
    if (new_slot) {
      const at::Tensor value = frozen_.slot_of(e.parameter).value;
      kept_.push_back({value, arena.allocate("lora_base", value.sizes().vec(), value.scalar_type()), {}});
    }
    kept_.back().chosen.push_back({e.parameter, first_row, std::exchange(a_entry, a_entry + 2)});
  }
  TANDEM_CHECK(a_entry == std::ssize(table_.entries), "every adapter has its matrix");
}

at::Tensor Lora::adapter(int64_t entry, const at::Tensor& flat) const {
  return table_.view(flat, table_.entries[static_cast<size_t>(entry)]);
}

void Lora::start(uint64_t seed) {
  for (Kept& kept : kept_) {
    kept.base.copy_(kept.value);
    for (const Chosen& c : kept.chosen) {
      const ParameterEntry& a = table_.entries[static_cast<size_t>(c.a_entry)];
      const double bound = 1 / std::sqrt(static_cast<double>(c.parameter.shape[1]));  // as PEFT: uniform
      RandomStream stream = stream_of(a.parameter.name, seed);
      fill_box(a, table_.view(values_, a), [&] { return (2 * stream.uniform() - 1) * bound; });
      adapter(c.a_entry + 1, values_).zero_();
    }
  }
}

void Lora::merge() {
  for (Kept& kept : kept_)
    for (const Chosen& c : kept.chosen) {
      const at::Tensor a = adapter(c.a_entry, values_), b = adapter(c.a_entry + 1, values_);
      merge_matrix(kept.value.narrow(0, c.first_row, b.size(0)), kept.base.narrow(0, c.first_row, b.size(0)), a, b, scale_);
    }
}

ModelParameters Lora::adapted(const at::Tensor& grads, bool merged) const {
  ModelParameters model = frozen_;
  model.adapted = true;
  for (const Kept& kept : kept_) {
    if (!merged && kept.base.scalar_type() == at::kBFloat16) model.slot_of(kept.chosen.front().parameter).base = kept.base;
    for (const Chosen& c : kept.chosen) {
      const int64_t a = c.a_entry, b = c.a_entry + 1;
      model.slot_of(c.parameter).adapters.push_back(
          {c.first_row, adapter(a, values_), adapter(b, values_), adapter(a, grads), adapter(b, grads), scale_});
    }
  }
  return model;
}

ModelParameters Lora::base() const {
  ModelParameters model = frozen_;
  for (const Kept& kept : kept_) model.slot_of(kept.chosen.front().parameter).value = kept.base;
  return model;
}

void Lora::write_base(const ParameterTable& base, const at::Tensor& values) const {
  ModelParameters model = make_parameters(base, values, at::Tensor());
  for (const Kept& kept : kept_) model.slot_of(kept.chosen.front().parameter).value.copy_(kept.base);
}

MergedAdapters::MergedAdapters(const ParameterTable& base, const LoraOptions& o, const at::Tensor& base_values, device::Arena& arena)
    : model_(base),
      table_(parameter_table(base.config, base.layout, base.rank, lora_parameters(base.config, o))),
      values_(arena.allocate("lora", {table_.num_elements}, at::kFloat)),
      scale_(o.scale()) {
  auto adapter = table_.entries.begin();
  for (size_t i = 0; i < base.entries.size(); ++i) {
    if (!is_adapted(base.entries[i].parameter, o)) continue;
    const at::Tensor w0 = base.view(base_values, base.entries[i]);
    const at::Tensor kept = arena.allocate("lora_base", w0.sizes().vec(), w0.scalar_type());
    kept.copy_(w0);
    const at::Tensor a = table_.view(values_, *adapter++), b = table_.view(values_, *adapter++);
    chosen_.push_back({i, kept, a, b});
  }
  TANDEM_CHECK(adapter == table_.entries.end(), "every adapter has its matrix");
}

void MergedAdapters::merge_into(const at::Tensor& model) const {
  for (const Chosen& c : chosen_) merge_matrix(model_.view(model, model_.entries[c.entry]), c.base, c.a, c.b, scale_);
}

}  // namespace tandem::model
