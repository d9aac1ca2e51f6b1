// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/context.h"

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {
namespace {

model::Layout layout_of(const std::string& text, const std::string& option, int world) {
  model::Layout layout = model::parse_layout(text, option);
  if (text.empty()) layout.dp = world;
  if (layout.world() == world) return layout;
  const std::string what = join_text(to_string(layout), " has ", layout.world(), " ranks, the run has ", world);
  const std::string ranks = join_text(comm::mpi_launched() ? "mpirun -n " : "--ranks ", layout.world());
  if (world % layout.world() != 0) throw UserError(option, what, ranks);
  layout.dp *= world / layout.world();
  throw UserError(option, what, join_text(to_string(layout), ", or ", ranks));
}

// The training layout as a rollout can have it: context-parallel ranks generate other sequences, a stage's layers lie together.
model::Layout rollout_of(model::Layout train) {
  train.dp *= train.cp;
  train.cp = train.vpp = 1;
  return train;
}

// Whether generation computes in another dtype than training.
bool has_own_dtype(const RunConfig& c) {
  const RolloutOptions& r = c.rollout;
  const bool own = !r.dtype.empty() && r.dtype != c.model.dtype;
  if (own && c.run.parity) throw UserError("rollout.dtype", r.dtype + " with run.parity", "empty, or " + c.model.dtype + " as model.dtype");
  if (!own && !r.products.empty())
    throw UserError("rollout.products", "is '" + r.products + "', and generation has the dtype of model.dtype", "model.products, for both");
  return own;
}

const std::string& rollout_dtype(const RunConfig& c) { return c.rollout.dtype.empty() ? c.model.dtype : c.rollout.dtype; }

// Of what is known in a dtype, what holds for this one; older checkpoints did not say.
std::string known_in(const std::string& dtype, const std::string& text, const std::string& text_dtype) {
  return text_dtype.empty() || text_dtype == dtype ? text : "";
}

model::ProductsWanted of_training(const RunConfig& c, const model::Products& known) {
  return {model::dtype_of(c.model.dtype, "model.dtype"), c.run.parity, "model.products", c.model.products,
          known_in(c.model.dtype, known.training, known.training_dtype)};
}

model::ProductsWanted of_rollout(const RunConfig& c, const model::Products& known) {
  return {model::dtype_of(rollout_dtype(c), "rollout.dtype"), c.run.parity, "rollout.products", c.rollout.products,
          known_in(rollout_dtype(c), known.rollout, known.rollout_dtype)};
}

}  // namespace

namespace {

// Ranks of a side whose layout is given; 0 where it is not.
int ranks_of(const std::string& text, const std::string& option) { return text.empty() ? 0 : model::parse_layout(text, option).world(); }

// A side without a layout takes what the other leaves, both without one half each.
std::pair<int, int> sides_of(const ParallelOptions& p, int world) {
  int train = ranks_of(p.train_layout, "parallel.train_layout"), rollout = ranks_of(p.rollout_layout, "parallel.rollout_layout");
  if (train == 0) train = rollout == 0 ? world - world / 2 : world - rollout;
  if (rollout == 0) rollout = world - train;
  if (world < 2 || train < 1 || rollout < 1 || train + rollout != world)
    throw UserError("parallel.placement",
                    join_text("split over ", world, world == 1 ? " rank: training takes " : " ranks: training takes ", std::max(train, 0),
                              ", rollout ", std::max(rollout, 0)),
                    "layouts whose ranks add up to those of the run, at least one each");
  return {train, rollout};
}

std::unique_ptr<comm::Mesh> mesh_of(bool takes_part, comm::Group& group, const model::Layout& layout) {
  return takes_part ? std::make_unique<comm::Mesh>(group, model::mesh_sizes(layout)) : nullptr;
}

}  // namespace

Layouts layouts_of(const RunConfig& c, int world) {
  const ParallelOptions& p = c.parallel;
  const planner::PlacementKind kind = planner::parse_placement(p.placement, "parallel.placement");
  const bool split = kind == planner::PlacementKind::kSplit;
  const auto [train_ranks, rollout_ranks] = split ? sides_of(p, world) : std::pair(world, world);
  const model::Layout train = layout_of(p.train_layout, "parallel.train_layout", train_ranks);
  const bool follows = p.rollout_layout.empty() && !split;
  const model::Layout rollout = follows ? rollout_of(train) : layout_of(p.rollout_layout, "parallel.rollout_layout", rollout_ranks);
  return {planner::placement_of(kind, train_ranks, rollout_ranks), train, rollout};
}

RankContext::RankContext(const RunConfig& c, comm::Group& ranks, StopRequested stop, const model::Products& known, const Layouts& layouts)
    : config(c),
      world(ranks),
      placement(layouts.placement),
      train_layout(layouts.train),
      rollout_layout(layouts.rollout),
      side_group(placement.is_split() ? ranks.split(trains() ? 0 : 1, trains() ? "train" : "rollout") : nullptr),
      train_mesh(mesh_of(trains(), side(), train_layout)),
      rollout_mesh(mesh_of(rolls_out(), side(), rollout_layout)),
      device("device", c.memory.device_mib << 20),
      host("host", c.memory.host_mib << 20),
      gemm(model::products_for(of_training(c, known), ranks)),
      rollout_gemm(has_own_dtype(c) ? model::products_for(of_rollout(c, known), ranks) : gemm),
      stop_requested(std::move(stop)) {
  // Sums over the ranks of a tensor-parallel group, and over those that cut an expert, have the order of that group.
  const bool same = train_layout.tp == rollout_layout.tp && train_layout.expert_tp() == rollout_layout.expert_tp();
  if (c.run.parity && !same)
    throw UserError("run.parity", join_text("training has ", to_string(train_layout), ", rollout ", to_string(rollout_layout)),
                    "the same tp, and for experts the same etp, in both");
}

model::Products RankContext::products() const {
  return {to_text(gemm.choice()), config.model.dtype, to_text(rollout_gemm.choice()), rollout_dtype(config), model::kernel::rows().isa};
}

std::string RankContext::products_text() const {
  const bool two = gemm.dtype() != rollout_gemm.dtype();
  std::string text = join_text("products: ", gemm.description());
  if (two) text += join_text("; of rollout: ", rollout_gemm.description());
  text += join_text("; rows ", model::kernel::rows().isa);
  if (config.run.parity) return text;
  text += join_text("; to repeat: model.products=\"", to_text(gemm.choice()), '"');
  return two ? join_text(text, " rollout.products=\"", to_text(rollout_gemm.choice()), '"') : text;
}

model::Products RankContext::kept(const model::Products& products, const RunConfig& c, comm::Group& world) {
  if (c.run.parity || products.rows.empty()) return {};
  const std::string here = model::kernel::rows().isa;
  if (!comm::any_of(world, products.rows != here)) return products;
  if (world.rank() == 0)
    log::warning("the run goes on from one with row kernels for ", products.rows, ", here they are for ", here,
                 " or differ between ranks: the last bits of sums may differ, and products are measured anew");
  return {};
}

void RankContext::adopt_products(const model::Products& products) {
  const model::Products known = kept(products, config, world);
  if (const auto choice = model::known_choice(of_training(config, known))) gemm = {gemm.dtype(), *choice};
  if (rollout_gemm.dtype() == gemm.dtype()) rollout_gemm = gemm;
  else if (const auto own = model::known_choice(of_rollout(config, known))) rollout_gemm = {rollout_gemm.dtype(), *own};
}

StopRequested RankContext::stop_between_tokens() {
  std::vector<comm::Group*> peers;
  if (!rolls_out()) return stop_requested;
  const model::RankPlace place = rollout_place();
  for (comm::Group* group : {place.tp, place.pp, rollout_layout.shares_experts() ? place.ep : nullptr})
    if (group) peers.push_back(group);
  if (peers.empty()) return stop_requested;
  // Peers must leave at the same token; asking costs a message, so not at each.
  constexpr int64_t kTokens = 16;
  return [this, peers, asked = int64_t{0}]() mutable {
    if (++asked % kTokens != 0) return false;
    bool any = stop_requested && stop_requested();
    for (comm::Group* group : peers) any = comm::any_of(*group, any);
    return any;
  };
}

void record_memory(RankContext& c) {
  for (const auto& [owner, bytes] : c.device.by_owner())
    if (owner != train::kActivations) c.recorder.set("memory/" + owner + "_bytes", static_cast<double>(bytes));
  for (const auto& [owner, bytes] : c.host.by_owner()) c.recorder.set("memory/host_" + owner + "_bytes", static_cast<double>(bytes));
  c.recorder.set("memory/peak_bytes", static_cast<double>(c.device.peak_bytes()));
  const int64_t budget = c.config.memory.device_mib << 20, peak = c.device.peak_bytes();
  if (budget > 0 && peak > budget && c.is_first() && !std::exchange(c.told_of_budget, true))
    log::warning("memory.device_mib: activations took the device to ", bytes_text(peak), ", above ", bytes_text(budget),
                 "; a smaller train.micro_batch_tokens or train.recompute: full takes less, a smaller rollout.kv_cache_mib or "
                 "memory.offload_* leaves more to them");
  std::map<std::string, double> mine;
  for (const auto& [name, value] : c.recorder.current())
    if (name.starts_with("memory/") || name.starts_with("switch/")) mine[name] = value;
  for (const auto& [name, value] : comm::largest_of_all(c.world, mine)) c.recorder.set(name, value);
}

}  // namespace tandem::runtime
