// SPDX-License-Identifier: Apache-2.0
// A training step sends, on every rank and axis, as many bytes as the formula says.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <mutex>

#include "../counting_group.h"
#include "../tiny_model.h"
#include "training_traffic.h"
#include "tandem/base/check.h"
#include "tandem/device/process.h"
#include "tandem/planner/memory.h"
#include "tandem/train/passes.h"
#include "tandem/train/trainer.h"

namespace tandem::train {
namespace {

using comm::Axis;
using Sequences = std::vector<std::vector<int32_t>>;

Sequences sequences() {
  Sequences all;
  RandomStream random(3, 1);
  for (int64_t i = 0; i < 10; ++i)
    for (auto& ids = all.emplace_back(); std::ssize(ids) < 4 + i * 7 % 31;) ids.push_back(static_cast<int32_t>(random.below(64)));
  return all;
}

// The experts of every token but the last of each sequence: [T, layers * k] each, as one rank chooses them.
std::vector<at::Tensor> routes_of(const model::ModelConfig& config, const Sequences& tokens) {
  std::vector<at::Tensor> all;
  if (config.moe.num_experts == 0) return all;
  test::TinyModel model(config, at::kFloat, false, 0.15, 9);
  model::initialize_parameters(model.table, model.values, 9, 0.15);
  at::NoGradGuard no_grad;
  for (const auto& ids : tokens) {
    const std::vector<int64_t> lengths = {std::ssize(ids) - 1};
    const at::Tensor input = at::empty({lengths[0]}, at::kLong);
    std::copy(ids.begin(), ids.end() - 1, input.data_ptr<int64_t>());
    all.push_back(at::full({lengths[0], model.decoder.route_width()}, -1, at::kShort));
    model::PackedContext context(model.kernels, model::kernel::stems(lengths));
    model.decoder.forward(model.parameters, {input, at::arange(lengths[0], at::kLong), {}, {}, all.back()}, context);
  }
  return all;
}

// What a rank has of a step.
struct Mine {
  std::vector<test::PassTraffic> passes;
  std::vector<int64_t> rows_to;           // by EP index: rows of this rank's tokens to its experts
  std::map<std::string, int64_t> counted;
};

Mine passes_of(const std::vector<MicroBatch>& batches) {
  Mine mine;
  for (const MicroBatch& batch : batches) {
    test::PassTraffic p{batch.tokens.ids_T.numel(), batch.tokens.rows_R.numel(), batch.tokens.ids_T.numel(),
                           batch.tokens.rows_R.numel()};
    if (batch.parallel.group) p.most_tokens = batch.parallel.share.most_tokens();
    for (const auto& responses : batch.responses_by_rank) p.most_wanted = std::max(p.most_wanted, std::ssize(responses));
    mine.passes.push_back(p);
  }
  return mine;
}

// Rows to the experts of each EP index, of the tokens that this rank and those that cut its experts deal.
std::vector<int64_t> rows_to(const std::vector<MicroBatch>& batches, std::span<const at::Tensor> routes,
                             const model::ModelConfig& config, const model::RankPlace& place) {
  const model::Layout& l = place.layout;
  const int64_t k = config.moe.experts_per_token, E = config.moe.num_experts;
  std::vector<int64_t> to(static_cast<size_t>(l.ep), 0);
  const int64_t first = l.tp_rank(place.rank) / l.expert_tp() * l.expert_tp();
  for (const MicroBatch& batch : batches) {
    std::vector<at::Tensor> parts;
    for (size_t row : batch.rows) parts.push_back(routes[row]);
    if (parts.empty()) continue;
    at::Tensor all = at::cat(parts);
    if (batch.parallel.group) {
      const std::vector<int64_t> own = batch.parallel.share.tokens(l.cp_rank(place.rank));
      all = all.index_select(0, at::tensor(own, at::kLong));
    }
    int64_t sparse = 0;
    for (int64_t i = 0; i < config.num_layers; ++i) {
      if (!config.is_sparse(i)) continue;
      at::Tensor here = all.narrow(1, k * sparse++, k);
      const auto ranges = model::layers_of(l, config.num_layers, l.pp_rank(place.rank));
      if (std::ranges::none_of(ranges, [&](const auto& r) { return i >= r.begin && i < r.end; })) continue;
      if (i + 1 == config.num_layers) here = here.index_select(0, batch.tokens.rows_R);
      const int64_t rows = here.size(0), begin = rows * first / l.tp, end = rows * (first + l.expert_tp()) / l.tp;
      here = here.narrow(0, begin, end - begin).contiguous();
      for (int64_t j = 0; j < here.numel(); ++j) ++to[static_cast<size_t>(here.data_ptr<int16_t>()[j] * l.ep / E)];
    }
  }
  return to;
}

// By axis: its own group's, and those of the group that sums gradients along it.
std::map<std::string, int64_t> counts(test::CountingGroup& world) {
  std::map<std::string, int64_t> bytes;
  for (const auto& [axis, sums] : {std::pair("data", "data gradients"), std::pair("expert_data", "expert gradients"),
                                   std::pair("tp", "tp gradients"), std::pair("tied", "tied gradients")})
    bytes[axis] = world.traffic_of(sums).bytes();
  for (Axis axis : {Axis::kTp, Axis::kCp, Axis::kPp, Axis::kEtp, Axis::kData, Axis::kExpertData})
    bytes[axis_name(axis)] += world.traffic_of(axis_name(axis)).bytes();
  bytes["ep"] = world.traffic_of(axis_name(Axis::kEp)).of(comm::Operation::kAllToAllV).bytes;
  std::erase_if(bytes, [](const auto& entry) { return entry.second == 0; });
  return bytes;
}

Mine step(const model::ModelConfig& config, const model::Layout& layout, comm::Group& all_ranks, const Sequences& tokens,
          std::span<const at::Tensor> routes) {
  device::set_compute_threads(1);
  test::CountingGroup world(all_ranks);
  comm::Mesh mesh(world, model::mesh_sizes(layout));
  const model::RankPlace place = model::place_in(layout, mesh);
  device::Arena arena("device");
  const model::kernel::Kernels kernels(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
  const model::ParameterTable table = model::parameter_table(config, layout, world.rank());
  const model::Decoder decoder(config, kernels, place);
  at::Tensor values = arena.allocate("weights", {table.num_elements}, at::kFloat);
  model::initialize_parameters(table, values, 9, 0.15);
  Options options;
  options.micro_batch_tokens = 64;
  Trainer trainer(options, {table, decoder, values, Ranks::in(mesh, config), arena});
  trainer.start();
  std::vector<Row> rows;
  std::vector<at::Tensor> my_routes;
  for (size_t i = static_cast<size_t>(layout.dp_rank(world.rank())); i < tokens.size(); i += static_cast<size_t>(layout.dp)) {
    rows.emplace_back();
    rows.back().prompt = std::span(tokens[i]).first(2);
    rows.back().response = std::span(tokens[i]).subspan(2);
    if (!routes.empty()) my_routes.push_back(routes[i]);
  }
  std::vector<MicroBatch> batches = pack(rows, options.micro_batch_tokens);
  share_micro_batches(decoder, batches);
  Mine mine = passes_of(batches);
  if (!routes.empty()) mine.rows_to = rows_to(batches, my_routes, config, place);
  world.reset();
  trainer.supervised_step(rows, 1e-3);
  mine.counted = counts(world);
  return mine;
}

void expect_formula(const model::ModelConfig& config, const std::string& text) {
  SCOPED_TRACE(config.family + ", " + text);
  const model::Layout layout = model::parse_layout(text, "layout");
  const Sequences tokens = sequences();
  const std::vector<at::Tensor> routes = routes_of(config, tokens);
  std::vector<Mine> all(static_cast<size_t>(layout.world()));
  comm::run_local(layout.world(), 60, [&](comm::Group& world) {
    all[static_cast<size_t>(world.rank())] = step(config, layout, world, tokens, routes);
  });
  const planner::TrainingPlan plan{config, layout, 4};
  int64_t total = 0;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Mine& mine = all[static_cast<size_t>(rank)];
    test::RoutedRows routed;
    const int expert_ranks = layout.ep * layout.expert_tp(), me = layout.ep_rank(rank);
    for (int peer = 0; peer < layout.world() && layout.ep > 1; ++peer) {
      const bool together = peer / expert_ranks == rank / expert_ranks && layout.etp_rank(peer) == layout.etp_rank(rank);
      if (!together || peer == rank) continue;
      routed.out += mine.rows_to[static_cast<size_t>(layout.ep_rank(peer))];
      routed.in += all[static_cast<size_t>(peer)].rows_to[static_cast<size_t>(me)];
    }
    EXPECT_EQ(mine.counted, test::training_traffic(plan, rank, mine.passes, routed)) << "rank " << rank;
    for (const auto& [axis, bytes] : mine.counted) total += bytes;
  }
  EXPECT_GT(total, 0);
  std::printf("%s, %s: %lld bytes in a step\n", config.family.c_str(), text.c_str(), static_cast<long long>(total));
}

model::ModelConfig deep(model::ModelConfig config) {
  config.num_layers = 5;
  return config;
}

TEST(Traffic, OfEveryLayoutIsWhatTheFormulaSays) {
  for (const char* family : {"qwen2", "qwen3_moe", "deepseek_v3"}) {
    const bool dense = family == std::string("qwen2");
    const model::ModelConfig config = deep(dense ? test::config_of(family, 2) : test::experts_config(family));
    std::vector<std::string> layouts = {"dp4", "tp4", "pp4", "tp2,pp2", "cp2,tp2", "dp2,tp2", "dp2,pp2,vpp2", "cp3"};
    if (!dense) layouts.insert(layouts.end(), {"dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2", "dp2,tp2,pp2,ep4",
                                               "cp2,ep2", "tp4,ep2"});
    for (const std::string& layout : layouts) expect_formula(config, layout);
  }
}

}  // namespace
}  // namespace tandem::train
