// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/run.h"

#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/scalar.h"
#include "tandem/runtime/folder/export.h"
#include "tandem/runtime/folder/run_state.h"
#include "tandem/runtime/progress.h"
#include "tandem/runtime/rl_run.h"
#include "tandem/runtime/session/rank_launch.h"
#include "tandem/runtime/session/start_model.h"
#include "tandem/runtime/supervised_run.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {
namespace {

namespace fs = std::filesystem;

// The directory to start from; a recipe without one gets a random model in the run folder. Collective.
std::string start_model(const RunConfig& config, comm::Group& world) {
  if (!config.model.path.empty()) return config.model.path;
  const std::string dir = config.run.dir + "/init/hf";
  if (world.rank() == 0 && !holds_model(dir)) write_random_model(dir, config.model, config.run.seed);
  world.barrier();
  return dir;
}

// Supervised steps generate next to nothing: with a split placement all ranks train, as many replicas of the layout as there is room for.
void train_on_all_ranks(RunConfig& config, comm::Group& world) {
  ParallelOptions& p = config.parallel;
  if (p.placement != "split") return;
  model::Layout layout = model::parse_layout(p.train_layout, "parallel.train_layout");
  if (world.size() % layout.world() != 0)
    throw UserError("parallel.train_layout",
                    join_text(p.train_layout, " does not divide the run's ", world.size(), " ranks, and all take part in supervised steps"),
                    "a divisor, or --model with a model that needs no warm start");
  layout.dp *= world.size() / layout.world();
  p.train_layout = model::to_string(layout);
  p.rollout_layout = "";
  p.placement = "colocated";
}

struct WarmStart {
  std::string model_dir;
  model::Products products;
};

// Supervised steps on a fresh model, in a run folder of their own inside this one. Collective.
WarmStart warm_start(const RunRequest& request, comm::Group& world, const std::string& model_dir) {
  const std::string dir = request.config.run.dir + "/warm_start";
  WarmStart done{dir + "/hf", {}};
  if (!comm::any_of(world, world.rank() == 0 && holds_model(dir + "/hf"))) {  // written last
    RunRequest supervised{request.config, true, "", request.stop};
    supervised.config.run.dir = dir;
    train_on_all_ranks(supervised.config, world);
    RankContext context(supervised.config, world, request.stop);
    std::unique_ptr<RunFolder> folder;
    if (context.is_first()) {
      log::info("warm start: ", supervised.config.supervised.steps, " supervised steps");
      folder = std::make_unique<RunFolder>(dir, supervised.config, fs::exists(dir));
    }
    world.barrier();
    SupervisedRun(supervised, context, folder.get(), model_dir).run();
    done.products = context.products();
  } else {
    done.products = products_of_run(dir, world);
  }
  world.barrier();
  return done;
}

// What options and layouts ask of the model, before any work. Collective: a rank that refuses takes back what it made of the run
// folder, and nobody may read there then.
void check_model(const RunConfig& c, comm::Group& world, const std::string& model_dir, bool supervised, bool rl) {
  const model::ModelConfig model = model::read_config(model_dir);
  world.barrier();
  const auto [placement, train, rollout] = layouts_of(c, world.size());
  model::check_layout(train, model, model::Use::kTraining, "parallel.train_layout");
  model::check_layout(rollout, model, model::Use::kRollout, "parallel.rollout_layout");
  if (supervised) train::check_options(c.supervised.train, model, c.model.lora, "supervised");
  if (rl) train::check_options(c.train, model, c.model.lora, "train");
}

std::vector<data::EvalAnswer> answers_at(const RunFolder& folder, int64_t step) {
  data::SampleReader reader(folder.path("samples.sqlite"));
  for (const data::StepSummary& s : reader.eval_steps())
    if (value(s.step) == step) return reader.evals(data::StepId{step}, 0, 3);
  return {};
}

void finish(RunFolder& folder, const RunSummary& summary) {
  folder.samples().flush();
  folder.write_summary(summary);
  print_result(summary, answers_at(folder, 0), answers_at(folder, summary.steps), folder.dir());
  log::stop_file();
}

}  // namespace

RunSummary run_rl(const RunRequest& request) {
  validate(request.config, "run");
  RunSummary result;
  std::unique_ptr<RunFolder> own;  // outlives all ranks: they may still read there when it goes
  launch_ranks(request.config, [&](comm::Group& world) {
    if (world.rank() == 0) own = std::make_unique<RunFolder>(request.config.run.dir, request.config, request.resume);
    RunFolder* folder = world.rank() == 0 ? own.get() : nullptr;
    world.barrier();
    WarmStart start{start_model(request.config, world), {}};
    const bool warm = request.config.model.path.empty() && request.config.supervised.steps > 0;
    check_model(request.config, world, start.model_dir, warm, true);
    if (warm) start = warm_start(request, world, start.model_dir);
    if (folder) log::also_to_file(folder->path("log.txt"));  // the warm start had its own
    RankContext context(request.config, world, request.stop, start.products);
    RlRun run(request, context, folder, start.model_dir);
    const RunSummary summary = run.run();
    if (!folder) return;
    finish(*folder, summary);
    result = summary;
  });
  return result;
}

RunSummary run_supervised(const RunRequest& asked) {
  RunSummary result;
  std::unique_ptr<RunFolder> own;
  launch_ranks(asked.config, [&](comm::Group& world) {
    RunRequest request = asked;
    train_on_all_ranks(request.config, world);
    if (world.rank() == 0) own = std::make_unique<RunFolder>(request.config.run.dir, request.config, request.resume);
    RunFolder* folder = world.rank() == 0 ? own.get() : nullptr;
    world.barrier();
    const std::string model_dir = start_model(request.config, world);
    check_model(request.config, world, model_dir, true, false);
    RankContext context(request.config, world, request.stop);
    const RunSummary summary = SupervisedRun(request, context, folder, model_dir).run();
    if (!folder) return;
    finish(*folder, summary);
    result = summary;
  });
  return result;
}

}  // namespace tandem::runtime
