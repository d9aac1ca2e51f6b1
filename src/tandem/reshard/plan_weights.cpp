// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_weights.h"

#include <map>
#include <tuple>

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

using model::family::Parameter;

/// The holdings of one layout; parameters that lie alike share one.
class Holdings {
 public:
  Holdings(const model::ModelConfig& config, const model::Replicas& replicas, int first_rank, std::vector<Holding>& all)
      : config_(config), replicas_(replicas), first_rank_(first_rank), all_(all), stage_of_(static_cast<size_t>(config.num_layers)) {
    for (int stage = 0; stage < replicas.layout.pp; ++stage)
      for (const auto& [begin, end] : model::layers_of(replicas.layout, config.num_layers, stage))
        std::fill(stage_of_.begin() + begin, stage_of_.begin() + end, stage);
  }

  int32_t of(const Parameter& p) {
    const auto [place, is_new] = places_.emplace(key(p), static_cast<int32_t>(all_.size()));
    if (is_new) all_.push_back(holding(p));
    return place->second;
  }

 private:
  using Key = std::tuple<std::vector<int64_t>, model::family::Split, int, int64_t>;

  Key key(const Parameter& p) const {
    constexpr int kEmbedding = -1, kLast = -2;
    int place = kLast;
    if (p.slot == model::family::Slot::kEmbedding) place = kEmbedding;
    else if (p.layer >= 0) place = stage_of_[static_cast<size_t>(p.layer)];
    const int64_t ep = p.expert < 0 ? -1 : p.expert * replicas_.layout.ep / config_.moe.num_experts;
    std::vector<int64_t> shape = p.shape;
    if (p.in_float()) shape = {p.words(p.shape[0])};
    return {std::move(shape), p.split, place, ep};
  }

  Holding holding(const Parameter& p) const {
    const model::Layout& layout = replicas_.layout;
    Holding holding;
    for (int replica = 0; replica < replicas_.count; ++replica)
      for (int rank = 0; rank < layout.world(); ++rank)
        if (model::holds(layout, rank, p, config_)) {
          Box box = p.in_float() ? Box::whole({p.words(p.shape[0])}) : model::box_of(p, config_, layout, rank);
          holding.push_back({first_rank_ + replica * layout.world() + rank, std::move(box)});
        }
    return holding;
  }

  const model::ModelConfig& config_;
  const model::Replicas& replicas_;
  int first_rank_;
  std::vector<Holding>& all_;
  std::vector<int> stage_of_;  // by layer
  std::map<Key, int32_t> places_;
};

}  // namespace

Table table_of(const model::ModelConfig& config, const std::vector<Parameter>& which, const model::Replicas& from,
               const model::Replicas& to, int to_first) {
  TANDEM_CHECK(to_first == from.world() || (to_first == 0 && from.world() <= to.world()), "layouts of ", from.world(), " and ", to.world(),
               " ranks");
  Table table{.num_ranks = to_first + to.world()};
  Holdings source(config, from, 0, table.holdings), target(config, to, to_first, table.holdings);
  std::map<std::pair<int32_t, int32_t>, int32_t> kinds;
  for (const Parameter& p : model::flat_order(which)) {
    const Table::Kind kind{source.of(p), target.of(p)};
    const auto [place, is_new] = kinds.emplace(std::pair(kind.source, kind.target), static_cast<int32_t>(table.kinds.size()));
    if (is_new) table.kinds.push_back(kind);
    table.kind_of.push_back(place->second);
  }
  return table;
}

Table table_of(const model::ModelConfig& config, const model::Replicas& from, const model::Replicas& to, Part part) {
  std::vector<Parameter> which = model::family::parameters(config);
  if (part != Part::kAll) std::erase_if(which, [&](const Parameter& p) { return (p.expert >= 0) != (part == Part::kExperts); });
  return table_of(config, which, from, to);
}

}  // namespace tandem::reshard
