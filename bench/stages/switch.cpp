// SPDX-License-Identifier: Apache-2.0
// A switch of a model's weights between two layouts, as a run makes it after each update. The target starts as rubbish and must end as
// the checkpoint loaded in its layout. Measured is the slowest rank, from a barrier on.
#include "stages/switch.h"

#include <ATen/ops/equal.h>

#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "report.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/mesh.h"
#include "tandem/comm/scalar.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/plan_weights.h"
#include "tandem/runtime/launch.h"

namespace tandem::bench {
namespace {

struct Question {
  model::ModelConfig config;
  model::Layout from, to;
};

Question question_of(const SwitchOptions& o) {
  Question q{model::read_config(o.model), model::parse_layout(o.from, "--from"), model::parse_layout(o.to, "--to")};
  model::check_layout(q.from, q.config, model::Use::kTraining, "--from");
  model::check_layout(q.to, q.config, model::Use::kRollout, "--to");
  return q;
}

void check_ranks(const Question& q, int ranks) {
  for (const auto& [layout, option] : {std::pair(&q.from, "--from"), std::pair(&q.to, "--to")})
    if (layout->world() != ranks)
      throw UserError(option, join_text(model::to_string(*layout), " has ", layout->world(), " ranks, and there are ", ranks),
                      comm::mpi_launched() ? join_text("mpirun -n ", layout->world()) : join_text("--ranks ", layout->world()));
}

/// The weights of one rank under one layout, as its model holds them.
struct Weights {
  comm::Mesh mesh;
  device::Arena arena{"device"};
  model::ModelOnRank model;

  Weights(const Question& q, const model::Layout& layout, const model::kernel::Kernels& kernels, comm::Group& world)
      : mesh(world, model::mesh_sizes(layout)), model(q.config, model::place_in(layout, mesh), kernels, {arena, "weights"}) {}
  std::vector<reshard::Held> held() { return reshard::held_weights(model.table(), model.values(), model.values().scalar_type()); }
};

void check(const model::ModelOnRank& got, const model::ModelOnRank& loaded) {
  for (const model::ParameterEntry& e : loaded.table().entries)
    TANDEM_CHECK(at::equal(loaded.table().view(got.values(), e), loaded.table().view(loaded.values(), e)), e.parameter.name,
                 " is not as the checkpoint has it");
}

Figures switch_on_rank(const SwitchOptions& o, const Question& q, comm::Group& world) {
  check_ranks(q, world.size());
  const model::kernel::Kernels kernels(model::kernel::cpu::backend(), model::dtype_of(o.dtype, "--dtype"),
                                       true);  // nothing is multiplied: no kernel has to be chosen
  Weights source(q, q.from, kernels, world), target(q, q.to, kernels, world), loaded(q, q.to, kernels, world);
  source.model.load(o.model), loaded.model.load(o.model);
  reshard::PlanOptions options;
  options.element_bytes = static_cast<int64_t>(c10::elementSize(kernels.dtype()));
  options.bucket_bytes = o.bucket_mib << 20;
  options.overlap = comm::are_processes(world);
  options.ranks_per_node = comm::ranks_per_machine(world);
  const reshard::Plan plan = reshard::make_plan(reshard::table_of(q.config, {1, q.from}, {1, q.to}), options);
  const reshard::RankPlan part = reshard::part_of(plan, world.rank());
  Figures figures;
  for (int64_t i = 0; i <= o.repeats; ++i) {
    target.model.values().fill_(-1);
    world.barrier();
    const double begin_s = now_s();
    const reshard::Moved moved = reshard::execute(part, world, source.held(), target.held(), {kernels.dtype()});
    world.barrier();
    const double seconds = now_s() - begin_s;
    check(plan.alias ? source.model : target.model, loaded.model);
    const double bytes = static_cast<double>(comm::sum_over(world, moved.sent_bytes));
    const double staging = static_cast<double>(comm::max_over(world, moved.staging_peak_bytes));
    if (i == 0) continue;  // the warm-up
    figures["switch_s"].push_back(seconds);
    figures["bytes"].push_back(bytes);
    figures["lower_bound_bytes"].push_back(static_cast<double>(plan.stats.lower_bound_bytes));
    figures["staging_peak_bytes"].push_back(staging);
    figures["calls"].push_back(static_cast<double>(plan.num_calls));
  }
  return figures;
}

}  // namespace

void describe(OptionVisitor& field, SwitchOptions& o) {
  field("from", o.from, "Layout of training, such as dp2,pp2");
  field("to", o.to, "Layout of generation, on as many ranks");
  field("ranks", o.ranks, "Ranks as threads, 0 is two; mpirun gives them itself", at_least(0));
  field("bucket_mib", o.bucket_mib, "Most staging memory of a rank", at_least(1));
  describe(field, static_cast<Common&>(o));
}

nlohmann::json switch_weights(const SwitchOptions& o) {
  const Question question = question_of(o);
  config::RunConfig config;
  config.parallel.ranks = local_ranks(o.ranks);
  config.parallel.threads = o.threads;
  config.run.device = "cpu";  // where its tensors are
  Figures figures;
  runtime::launch_ranks(config, runtime::Host::kProgram, [&](comm::Group& world) {
    Figures mine = switch_on_rank(o, question, world);
    if (world.rank() == 0) figures = std::move(mine);
  });
  if (figures.empty()) return {};
  const char* const are = comm::mpi_launched() ? "processes" : "threads";
  return report("switch", {{"model", o.model}, {"dtype", o.dtype}, {"from", model::to_string(question.from)},
                                 {"to", model::to_string(question.to)}, {"ranks", question.from.world()}, {"ranks_are", are},
                                 {"bucket_mib", o.bucket_mib}, {"threads", o.threads}, {"repeats", o.repeats}}, figures);
}

}  // namespace tandem::bench
