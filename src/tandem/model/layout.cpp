// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/layout.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::model {

namespace {

constexpr int64_t kMostRanks = 1 << 20;

constexpr std::pair<const char*, int Layout::*> kAxes[] = {{"dp", &Layout::dp}, {"tp", &Layout::tp},   {"cp", &Layout::cp},
                                                          {"pp", &Layout::pp}, {"vpp", &Layout::vpp}, {"ep", &Layout::ep},
                                                          {"etp", &Layout::etp}};

int64_t part_size(int64_t size, int64_t parts) { return (size + parts - 1) / parts; }

void check_axes(const Layout& layout, const std::string& text, const std::string& where) {
  const auto nests = [](int a, int b) { return a % b == 0 || b % a == 0; };
  const int expert_ranks = layout.ep * layout.expert_tp(), tp = layout.tp;
  const std::string axes = join_text("ep", layout.ep, " with etp", layout.expert_tp(), " in the layout '", text, "'");
  if (tp % layout.expert_tp() != 0) throw UserError(where, axes, join_text("etp divides tp, ", tp));
  if (layout.stage_ranks() % expert_ranks != 0)
    throw UserError(where, axes, join_text("ep*etp, ", expert_ranks, ", divides dp*cp*tp, ", layout.stage_ranks()));
  if (!nests(expert_ranks, tp) || !nests(expert_ranks, tp * layout.cp))
    throw UserError(where, axes, join_text("ep*etp, ", expert_ranks, ", is a multiple or a divisor of tp, ", tp, ", and of cp*tp, ",
                                           tp * layout.cp));
  if (layout.vpp > 1 && layout.pp == 1)
    throw UserError(where, join_text("vpp", layout.vpp, " in the layout '", text, "'"), "vpp only with pp above 1");
}

}  // namespace

Layout parse_layout(const std::string& text, const std::string& where) {
  Layout layout;
  std::set<std::string> given;
  int64_t ranks = 1;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto digits = part.find_first_of("0123456789");
    const std::string axis = part.substr(0, digits);
    int degree = 0;
    const char* end = part.data() + part.size();
    const bool number = digits != std::string::npos && std::from_chars(part.data() + digits, end, degree).ptr == end;
    if (!number || degree < 1)
      throw UserError(where, "'" + part + "' in the layout '" + text + "'", "an axis and its degree, as in dp2,tp4");
    const auto known = std::ranges::find_if(kAxes, [&](const auto& each) { return axis == each.first; });
    if (known == std::end(kAxes))
      throw UserError(where, "unknown axis '" + axis + "' in the layout '" + text + "'", "dp, cp, tp, pp, vpp, ep or etp");
    if (!given.insert(axis).second) throw UserError(where, "axis '" + axis + "' twice in the layout '" + text + "'", "each axis once");
    if (axis != "ep" && axis != "etp") ranks *= degree;
    if (degree > kMostRanks || ranks > kMostRanks)
      throw UserError(where, "'" + part + "' in the layout '" + text + "'", join_text("at most ", kMostRanks, " ranks"));
    layout.*known->second = degree;
  }
  check_axes(layout, text, where);
  if (layout.etp == Layout{layout.dp, layout.tp, layout.ep}.expert_tp()) layout.etp = 0;
  return layout;
}

std::string to_string(const Layout& layout) {
  std::string text = join_text("dp", layout.dp, ",tp", layout.tp);
  for (const auto& [axis, degree] : std::span(kAxes).subspan(2, 4))
    if (layout.*degree > 1) text += join_text(",", axis, layout.*degree);
  if (layout.etp > 0) text += join_text(",etp", layout.etp);
  return text;
}

Replicas parse_replicas(const std::string& text, const std::string& where) {
  const auto open = text.find("x(");
  if (open == std::string::npos) return {1, parse_layout(text, where)};
  Replicas replicas;
  const char* const end = text.data() + open;
  const bool is_count = std::from_chars(text.data(), end, replicas.count).ptr == end && open > 0 && replicas.count > 0;
  if (!is_count || text.back() != ')') throw UserError(where, "'" + text + "'", "replicas of a layout, as in 2x(dp64,tp2,ep128)");
  replicas.layout = parse_layout(text.substr(open + 2, text.size() - open - 3), where);
  if (replicas.count > kMostRanks / replicas.layout.world())
    throw UserError(where, "'" + text + "'", join_text("at most ", kMostRanks, " ranks"));
  return replicas;
}

std::string to_string(const Replicas& replicas) {
  const std::string layout = to_string(replicas.layout);
  return replicas.count == 1 ? layout : join_text(replicas.count, "x(", layout, ")");
}

std::vector<LayerRange> layers_of(const Layout& layout, int64_t num_layers, int pp_rank) {
  const int64_t chunks = static_cast<int64_t>(layout.pp) * layout.vpp, each = num_layers / chunks, longer = num_layers % chunks;
  std::vector<LayerRange> ranges;
  for (int64_t c = pp_rank; c < chunks; c += layout.pp) {
    const int64_t begin = c * each + std::min(c, longer);
    ranges.push_back({begin, begin + each + (c < longer ? 1 : 0)});
  }
  return ranges;
}

int64_t num_layers_of(const Layout& layout, int64_t num_layers, int pp_rank) {
  int64_t count = 0;
  for (const auto& [begin, end] : layers_of(layout, num_layers, pp_rank)) count += end - begin;
  return count;
}

comm::MeshSizes mesh_sizes(const Layout& l) { return {l.dp, l.cp, l.tp, l.pp, l.ep, l.expert_tp()}; }

RankPlace place_in(const Layout& layout, comm::Mesh& mesh) {
  const auto along = [&](comm::Axis axis) { return mesh.size(axis) > 1 ? &mesh.along(axis) : nullptr; };
  return {layout, mesh.world().rank(), along(comm::Axis::kTp), along(comm::Axis::kEp), along(comm::Axis::kEtp), along(comm::Axis::kCp),
          along(comm::Axis::kPp)};
}

void check_layout(const Layout& layout, const ModelConfig& c, Use use, const std::string& where) {
  const auto divides = [&](const char* axis, int degree, int64_t n, const char* what) {
    if (n % degree != 0)
      throw UserError(where, join_text(axis, degree, " does not divide ", n, " ", what), join_text("a divisor of it; dp cuts no tensor"));
  };
  if (layout.ep > 1 && c.moe.num_experts == 0)
    throw UserError(where, join_text("has ep", layout.ep, ", and a ", c.family, " has no experts"), "no ep");
  divides("tp", layout.tp, c.num_heads, "attention heads");
  if (layout.etp > 0 && c.moe.num_experts == 0)
    throw UserError(where, join_text("has etp", layout.etp, ", and a ", c.family, " has no experts"), "no etp");
  bool has_dense = false;
  for (int64_t i = 0; i < c.num_layers; ++i) has_dense = has_dense || !c.is_sparse(i);
  if (has_dense) divides("tp", layout.tp, c.intermediate_size, "columns of the MLP");
  if ((layout.tp - 1) * vocab_shard_rows(c, layout.tp) >= c.vocab_size)
    throw UserError(where, join_text("tp", layout.tp, " leaves a rank without one of ", c.vocab_size, " rows of the vocabulary"),
                    "a smaller tp");
  if (c.moe.num_experts > 0) {
    divides("etp", layout.expert_tp(), c.moe.intermediate_size, "columns of an expert");
    divides("tp", layout.tp, c.moe.num_shared_experts * c.moe.intermediate_size, "columns of the shared experts");
  }
  if (layout.ep > 1 && layout.ep > c.moe.num_experts)
    throw UserError(where, join_text("ep", layout.ep, " over ", c.moe.num_experts, " experts"), "at most one rank per expert");
  if (const int64_t chunks = static_cast<int64_t>(layout.pp) * layout.vpp; chunks > c.num_layers)
    throw UserError(where, join_text(to_string(layout), " over ", c.num_layers, " layers"), "pp*vpp at most the number of layers");
  if (use == Use::kRollout && (layout.cp > 1 || layout.vpp > 1))
    throw UserError(where, join_text(to_string(layout), ": cp and vpp are axes of training"), "dp, tp, pp, ep and etp");
  if (c.mla.kv_rank == 0 && c.num_kv_heads % layout.tp != 0 && layout.tp % c.num_kv_heads != 0)
    throw UserError(where, join_text("tp", layout.tp, " against ", c.num_kv_heads, " kv heads"), "one must divide the other");
}

int64_t vocab_shard_rows(const ModelConfig& config, int tp) { return part_size(config.vocab_size, tp); }

int64_t local_kv_heads(const ModelConfig& config, int tp) { return std::max<int64_t>(1, config.num_kv_heads / tp); }

int64_t first_expert(int64_t num_experts, int ep, int index) { return (index * num_experts + ep - 1) / ep; }

bool holds(const Layout& layout, int rank, const family::Parameter& parameter, const ModelConfig& config) {
  const int stage = layout.pp_rank(rank);
  if (parameter.slot == family::Slot::kEmbedding) return stage == 0 || (config.has_tied_head() && stage == layout.pp - 1);
  if (parameter.layer < 0) return stage == layout.pp - 1;
  const auto has_layer = [&](const LayerRange& r) { return parameter.layer >= r.begin && parameter.layer < r.end; };
  if (std::ranges::none_of(layers_of(layout, config.num_layers, stage), has_layer)) return false;
  return parameter.expert < 0 || parameter.expert * layout.ep / config.moe.num_experts == layout.ep_rank(rank);
}

Box box_of(const family::Parameter& parameter, const ModelConfig& config, const Layout& layout, int rank) {
  const bool expert = parameter.expert >= 0;
  const int tp = expert ? layout.expert_tp() : layout.tp, tp_rank = expert ? layout.etp_rank(rank) : layout.tp_rank(rank);
  Box box = Box::whole(parameter.shape);
  // What check_layout lets be cut unevenly, the vocabulary, has a shorter last part.
  const auto cut = [&](size_t dim, int64_t parts, int64_t index) {
    const int64_t size = part_size(parameter.shape[dim], parts);
    box.begin[dim] = index * size;
    box.end[dim] = std::min((index + 1) * size, parameter.shape[dim]);
  };
  switch (parameter.split) {
    case family::Split::kNone:
    case family::Split::kPartial: break;
    case family::Split::kRows: cut(0, tp, tp_rank); break;
    case family::Split::kColumns: cut(1, tp, tp_rank); break;
    case family::Split::kKvRows: {
      const int64_t parts = std::min<int64_t>(tp, config.num_kv_heads);
      cut(0, parts, tp_rank * parts / tp);
      break;
    }
  }
  return box;
}

std::vector<family::Parameter> flat_order(std::vector<family::Parameter> parameters) {
  const auto is_shared = [](const family::Parameter& p) { return p.expert < 0; };
  std::stable_partition(parameters.begin(), parameters.end(), is_shared);  // clang 14 has no form for ranges
  return parameters;
}

std::vector<TensorSpec> boxes_of(const ModelConfig& config, const Layout& layout, int rank) {
  std::vector<TensorSpec> specs;
  for (const family::Parameter& p : flat_order(family::parameters(config))) {
    if (!holds(layout, rank, p, config)) continue;
    if (p.in_float()) specs.push_back({p.name, {p.words(p.shape[0])}, Box::whole({p.words(p.shape[0])})});
    else specs.push_back({p.name, p.shape, box_of(p, config, layout, rank)});
  }
  return specs;
}

}  // namespace tandem::model
