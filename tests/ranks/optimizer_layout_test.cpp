// SPDX-License-Identifier: Apache-2.0
// The optimizer alone, on made-up gradients, under layouts of every axis: after some steps all ranks together hold what one rank with
// the sum of all their gradients has. No decoder takes part.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "../tiny_model.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/device/process.h"
#include "tandem/planner/memory.h"
#include "tandem/train/trainer.h"

namespace tandem::train {
namespace {

constexpr int kSteps = 3;
constexpr double kLr = 1e-2;
constexpr int64_t kChunkElements = 1000;

struct Case {
  std::string layout;
  model::ModelConfig config;
  c10::ScalarType dtype = at::kFloat;
  bool announce = false;  // layers as they are ready, as a backward pass does
  bool swap = false;
  int64_t bucket_bytes = 20'000;
};

struct Result {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> weights;  // whole, by name
  std::vector<planner::TrainingMemory> memory;  // by rank, as the arenas have it
  std::vector<int64_t> device_peak;             // bytes by rank
};

model::ModelConfig deep(model::ModelConfig config, bool tied) {
  config.num_layers = 4;
  config.tied_embeddings = tied;
  config.vocab_size = 61;  // tp cuts it unevenly
  return config;
}

// Each rank that has a gradient of its own brings other numbers; those with the same tokens bring the same.
std::string contributor(const model::ParameterEntry& e, const model::Layout& l, int rank) {
  using model::family::Split;
  if (e.parameter.expert >= 0) return join_text("expert data ", rank % l.stage_ranks() / (l.ep * l.expert_tp()));
  std::string name = join_text("data ", rank % l.stage_ranks() / l.tp);
  const Split split = e.parameter.split;
  const bool part = split == Split::kPartial || split == Split::kKvRows || split == Split::kNone;
  if (part && e.replicas > 1) name += join_text(" tp ", l.tp_rank(rank));
  if (e.parameter.slot == model::family::Slot::kEmbedding && e.replicas > 1) name += join_text(" stage ", l.pp_rank(rank));
  return name;
}

at::Tensor made_up(const model::family::Parameter& p, const std::string& who, int step) {
  RandomStream random = model::stream_of(join_text(p.name, " ", who), static_cast<uint64_t>(step));
  at::Tensor whole = at::empty(p.shape, at::kFloat);
  for (float* x = whole.data_ptr<float>(), *end = x + whole.numel(); x < end; ++x) *x = static_cast<float>(random.normal());
  return whole;
}

at::Tensor cut(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.begin.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
  return whole;
}

Options options() {
  Options o;
  o.clip_grad_norm = 1;
  o.weight_decay = 0.1;
  o.eps = 1e-3;  // Adam divides by the size of a gradient; where that is rounding alone, its sign is chance
  return o;
}

using Gradients = std::map<std::string, at::Tensor>;  // the sums over all ranks

// The parts of a parameter that differ by rank, summed as if one rank had them all.
void add_contribution(Gradients& sums, std::map<std::string, at::Tensor>& seen, const model::ParameterEntry& e, const std::string& who,
                      const at::Tensor& mine) {
  at::Tensor& sum = sums[e.parameter.name];
  if (!sum.defined()) sum = at::zeros(e.parameter.shape, at::kDouble);
  at::Tensor& mask = seen[e.parameter.name + " " + who];
  if (!mask.defined()) mask = at::zeros(e.parameter.shape, at::kBool);
  const at::Tensor fresh = cut(mask, e.box).logical_not();
  cut(sum, e.box).add_(mine.to(at::kDouble) * fresh.to(at::kDouble));
  cut(mask, e.box).fill_(true);
}

struct Shared {
  std::mutex mutex;
  std::vector<Gradients> sums{kSteps};
  std::vector<std::map<std::string, at::Tensor>> seen{kSteps};
  Result result;
};

void run_rank(const Case& c, const model::Layout& layout, comm::Group& world, Shared& shared) {
  device::set_compute_threads(1);
  comm::Mesh mesh(world, model::mesh_sizes(layout));
  const Ranks ranks = Ranks::in(mesh, c.config);
  device::Arena device("device"), host("host");
  const model::ParameterTable table = model::parameter_table(c.config, layout, world.rank());
  at::Tensor values = device.allocate("weights", {table.num_elements}, c.dtype);
  at::Tensor grads = device.allocate("gradients", {table.num_elements}, at::kFloat);
  model::initialize_parameters(table, values, 9, 0.3);
  monitor::Recorder recorder;
  Optimizer optimizer({.state = {.table = table,
                       .kernels = model::kernel::cpu::backend().update,
                                 .values = values,
                                 .arena = device,
                                 .host = &host,
                                 .swap = c.swap,
                                 .chunk_elements = kChunkElements},
                       .grads = grads,
                       .ranks = ranks,
                       .recorder = &recorder,
                       .bucket_bytes = c.bucket_bytes});
  optimizer.state().adopt_values();
  for (int step = 0; step < kSteps; ++step) {
    for (const model::ParameterEntry& e : table.entries) {
      if (!e.parameter.trained) continue;
      const std::string who = contributor(e, layout, world.rank());
      const at::Tensor mine = cut(made_up(e.parameter, who, step), e.box);
      table.view(grads, e).copy_(mine);
      std::lock_guard lock(shared.mutex);
      add_contribution(shared.sums[static_cast<size_t>(step)], shared.seen[static_cast<size_t>(step)], e, who, mine);
    }
    optimizer.begin_step();
    if (c.announce)
      for (auto l = table.layers.rbegin(); l != table.layers.rend(); ++l)
        if (l->layer >= 0) optimizer.layer_ready(l->layer);
    const double norm = optimizer.step(options(), kLr);
    if (world.rank() == 0) shared.result.norms.push_back(norm);
  }
  std::lock_guard lock(shared.mutex);
  shared.result.memory.resize(static_cast<size_t>(layout.world()));
  shared.result.device_peak.resize(static_cast<size_t>(layout.world()));
  shared.result.memory[static_cast<size_t>(world.rank())] = {device.by_owner(), host.by_owner()};
  shared.result.device_peak[static_cast<size_t>(world.rank())] = device.peak_bytes();
  for (const model::ParameterEntry& e : table.entries) {
    at::Tensor& whole = shared.result.weights[e.parameter.name];
    if (!whole.defined()) whole = at::full(e.parameter.shape, NAN);
    at::Tensor part = cut(whole, e.box);
    const at::Tensor held = table.view(values, e).to(at::kFloat);
    EXPECT_TRUE(part.isnan().any().item<bool>() || at::equal(part, held)) << e.parameter.name << ": ranks hold different copies";
    part.copy_(held);
  }
}

std::pair<Result, std::vector<Gradients>> run(const Case& c) {
  const model::Layout layout = model::parse_layout(c.layout, "layout");
  model::check_layout(layout, c.config, model::Use::kTraining, "layout");
  Shared shared;
  comm::run_local(layout.world(), 60, [&](comm::Group& world) { run_rank(c, layout, world, shared); });
  return {shared.result, shared.sums};
}

// What one rank makes of those sums.
Result one_rank(const Case& c, const std::vector<Gradients>& sums) {
  device::Arena arena("device");
  const auto alone = comm::single();
  const model::ParameterTable table = model::parameter_table(c.config, {}, 0);
  at::Tensor values = arena.allocate("weights", {table.num_elements}, c.dtype);
  at::Tensor grads = arena.allocate("gradients", {table.num_elements}, at::kFloat);
  model::initialize_parameters(table, values, 9, 0.3);
  Optimizer optimizer({.state = {.table = table, .kernels = model::kernel::cpu::backend().update, .values = values, .arena = arena},
                       .grads = grads,
                       .ranks = Ranks::of_one(*alone)});
  optimizer.state().adopt_values();
  Result result;
  for (const Gradients& sum : sums) {
    for (const model::ParameterEntry& e : table.entries)
      if (e.parameter.trained) table.view(grads, e).copy_(sum.at(e.parameter.name));
    optimizer.begin_step();
    result.norms.push_back(optimizer.step(options(), kLr));
  }
  for (const model::ParameterEntry& e : table.entries) result.weights[e.parameter.name] = table.view(values, e).to(at::kFloat);
  return result;
}

double worst_norm(const Result& a, const Result& b) {
  double worst = 0;
  for (size_t i = 0; i < b.norms.size(); ++i) worst = std::max(worst, std::abs(a.norms[i] / b.norms[i] - 1));
  return worst;
}

double worst_weight(const Result& a, const Result& b) {
  double worst = 0;
  for (const auto& [name, tensor] : b.weights) worst = std::max(worst, (a.weights.at(name) - tensor).abs().max().item<double>());
  return worst;
}

const std::vector<const char*> kDense = {"dp4", "tp4", "pp4", "tp2,pp2", "cp2,tp2", "dp2,tp2", "dp2,pp2,vpp2", "dp3", "dp2,cp2"};
const std::vector<const char*> kExperts = {"dp4",        "tp2,pp2",     "dp4,ep4",         "dp2,tp2,ep4",     "dp2,pp2,ep2",
                                           "cp2,tp2",    "tp4,ep2",     "dp2,tp2,ep2,etp2", "dp2,tp2,pp2,ep4",
                                           "dp2,tp2,ep2", "dp2,pp2,vpp2"};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* layout : kDense) {
    cases.push_back({layout, deep(test::config_of("qwen2", 2), true)});
    cases.push_back({layout, deep(test::config_of("qwen3", 1), false)});
  }
  for (const char* layout : kExperts)
    for (const char* family : {"qwen3_moe", "deepseek_v3"})
      cases.push_back({layout, deep(test::experts_config(family), family == std::string("qwen3_moe"))});
  return cases;
}

TEST(OptimizerLayout, AllRanksTogetherHoldWhatOneRankHasAndSumsBesideTheBackwardPassChangeNoBit) {
  for (Case c : all_cases()) {
    SCOPED_TRACE(c.config.family + ", " + c.layout);
    const auto [got, sums] = run(c);
    const Result want = one_rank(c, sums);
    EXPECT_LE(worst_norm(got, want), 1e-6);
    EXPECT_LE(worst_weight(got, want), 2e-6);
    c.announce = true;
    const Result beside = run(c).first;
    EXPECT_EQ(beside.norms, got.norms);
    EXPECT_EQ(worst_weight(beside, got), 0);
  }
}

void expect_predicted(const Case& c, const Result& got) {
  const planner::TrainingPlan plan{c.config, model::parse_layout(c.layout, "layout"), static_cast<int64_t>(c10::elementSize(c.dtype)), {},
                                   c.swap ? kChunkElements : 0};
  for (size_t rank = 0; rank < got.memory.size(); ++rank) {
    const planner::TrainingMemory want = planner::training_memory(plan, static_cast<int>(rank));
    EXPECT_EQ(got.memory[rank].device, want.device) << "rank " << rank;
    EXPECT_EQ(got.memory[rank].host, want.host) << "rank " << rank;
  }
}

TEST(OptimizerLayout, AStateInHostMemoryGivesTheSameBitsAndFreesThePredictedBytes) {
  int index = 0;
  for (Case c : all_cases()) {
    c.dtype = index++ % 2 == 0 ? at::kFloat : at::kBFloat16;
    SCOPED_TRACE(join_text(c.config.family, ", ", c.layout, ", ", c10::toString(c.dtype)));
    const Result held = run(c).first;
    expect_predicted(c, held);
    c.swap = true;
    const Result swapped = run(c).first;
    expect_predicted(c, swapped);
    EXPECT_EQ(swapped.norms, held.norms);
    EXPECT_EQ(worst_weight(swapped, held), 0);
    for (size_t rank = 0; rank < held.memory.size(); ++rank) {
      int64_t state = 0;  // what leaves the device, but for a chunk
      for (const char* owner : {"optimizer", "master_weights"})
        if (held.memory[rank].device.contains(owner)) state += held.memory[rank].device.at(owner);
      const int64_t chunk = swapped.memory[rank].device.at("optimizer");
      EXPECT_LT(chunk, state / 2);
      EXPECT_EQ(held.device_peak[rank] - swapped.device_peak[rank], state - chunk);
    }
  }
}

// All that a trainer allocates, adapters too.
TEST(OptimizerLayout, ATrainerHoldsThePredictedBytes) {
  for (const Case& c : all_cases())
    for (const model::LoraOptions& lora : {model::LoraOptions{}, {3, 8}, {2, 8, {"down_proj", "o_proj"}}})
      for (const bool swap : {false, true}) {
        const c10::ScalarType dtype = swap ? at::kBFloat16 : at::kFloat;
        const model::Layout layout = model::parse_layout(c.layout, "layout");
        SCOPED_TRACE(join_text(c.config.family, ", ", c.layout, ", adapters of rank ", lora.rank, swap ? ", swapped" : ""));
        const planner::TrainingPlan plan{c.config, layout, static_cast<int64_t>(c10::elementSize(dtype)), lora,
                                         swap ? kSwapChunkElements : 0};
        comm::run_local(layout.world(), 60, [&](comm::Group& world) {
          comm::Mesh mesh(world, model::mesh_sizes(layout));
          device::Arena device("device"), host("host");
          const model::kernel::Kernels kernels(model::kernel::cpu::backend(), dtype, model::kernel::GemmChoice{});
          const model::ParameterTable table = model::parameter_table(c.config, layout, world.rank());
          const model::Decoder decoder(c.config, kernels, model::place_in(layout, mesh));
          at::Tensor values = device.allocate("weights", {table.num_elements}, dtype);
          Options o;
          o.swap_optimizer = swap;
          const Trainer trainer(o, {table, decoder, values, Ranks::in(mesh, c.config), device, lora, 5, &host});
          const planner::TrainingMemory want = planner::training_memory(plan, world.rank());
          EXPECT_EQ(device.by_owner(), want.device);
          EXPECT_EQ(host.by_owner(), want.host);
          int64_t all = 0;
          for (const auto& [owner, bytes] : want.device) all += bytes;
          EXPECT_EQ(device.peak_bytes(), all) << "nothing more at any time";
        });
      }
}

// Two ranks with a model and an optimizer, and what its recorder was told.
struct Pair {
  class Spans : public monitor::Sink {
   public:
    explicit Spans(std::vector<monitor::SpanRecord>& all) : all_(all) {}
    void write_step(int64_t, const monitor::Metrics&) override {}
    void write_spans(const std::vector<monitor::SpanRecord>& spans) override { all_.insert(all_.end(), spans.begin(), spans.end()); }
    int64_t flush() override { return 0; }
    std::string name() const override { return "spans"; }

   private:
    std::vector<monitor::SpanRecord>& all_;
  };

  explicit Pair(comm::Group& world)
      : mesh(world, {.dp = 2}),
        table(model::parameter_table(deep(test::config_of("qwen2", 2), false), {2}, world.rank())),
        values(arena.allocate("weights", {table.num_elements}, at::kFloat)),
        grads(arena.allocate("gradients", {table.num_elements}, at::kFloat)),
        optimizer({.state = {.table = table, .kernels = model::kernel::cpu::backend().update, .values = values, .arena = arena},
                   .grads = grads,
                   .ranks = {.world = &world,
                             .data = &mesh.along(comm::Axis::kData),
                             .expert_data = &mesh.along(comm::Axis::kExpertData),
                             .tp = &mesh.along(comm::Axis::kTp)},
                   .recorder = &recorder,
                   .bucket_bytes = 1}) {
    recorder.add_sink(std::make_unique<Spans>(spans));
    optimizer.begin_step();
  }

  comm::Mesh mesh;
  device::Arena arena{"device"};
  model::ParameterTable table;
  at::Tensor values, grads;
  monitor::Recorder recorder;
  std::vector<monitor::SpanRecord> spans;
  Optimizer optimizer;
};

TEST(GradientSum, ALayerIsSummedWhileOthersAreNotReady) {
  comm::run_local(2, 20, [](comm::Group& world) {
    Pair pair(world);
    pair.grads.fill_(1.0f);
    pair.optimizer.layer_ready(3);
    const Deadline deadline = Deadline::after_s(20);
    while (pair.spans.empty() && !deadline.passed()) pair.recorder.commit_step(1);
    ASSERT_EQ(pair.spans.size(), 1u);
    EXPECT_EQ(pair.spans[0].name, "sum layer 3");
    const double elements = static_cast<double>(pair.table.num_elements);
    pair.grads.narrow(0, 0, pair.table.layers.back().dense.begin).zero_();
    const double norm = pair.optimizer.step(options(), kLr);
    EXPECT_GT(norm, 0);
    EXPECT_LT(norm, 2 * std::sqrt(elements));
    pair.recorder.commit_step(2);
    EXPECT_EQ(pair.spans.size(), 5u) << "four layers and the embedding, each a bucket of its own";
    EXPECT_EQ(pair.spans.back().name, "sum the embedding");
  });
}

// Rank 1 fails; rank 0 waits for it: for a layer's sum, or elsewhere while rank 1's own sum waits for rank 0.
TEST(GradientSum, ARankThatFailsInABackwardPassEndsTheOthersByItsName) {
  for (const bool announced : {false, true}) {
    try {
      comm::run_local(2, 20, [&](comm::Group& world) {
        Pair pair(world);
        if (world.rank() == 1 && announced) {
          pair.optimizer.layer_ready(3);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that its sum has begun
        }
        if (world.rank() == 1) throw UserError("rows", "are of rank 1", "none");
        if (announced) world.barrier();
        pair.optimizer.layer_ready(3);
        pair.optimizer.step(options(), kLr);
      });
      ADD_FAILURE() << "no error";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("are of rank 1"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tandem::train
