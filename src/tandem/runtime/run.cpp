// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/run.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <sstream>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/checkpoint/model_dir.h"
#include "tandem/checkpoint/run_state.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/scalar.h"
#include "tandem/config/algorithm.h"
#include "tandem/data/decisions.h"
#include "tandem/fit/fit.h"
#include "tandem/hub/recipe.h"
#include "tandem/policy/critic.h"
#include "tandem/policy/start_model.h"
#include "tandem/runtime/folder/progress.h"
#include "tandem/runtime/folder/run_state.h"
#include "tandem/runtime/rl_run.h"
#include "tandem/runtime/launch.h"
#include "tandem/runtime/stage/stages.h"
#include "tandem/runtime/supervised_run.h"
#include "tandem/serve/generation_defaults.h"
#include "tandem/serve/reward_trial.h"
#include "tandem/sink/worker.h"
#include "tandem/train/trainer.h"
#include "tandem/worker/door.h"

namespace tandem::runtime {
namespace {

namespace fs = std::filesystem;

// The directory to start from; a recipe without one gets a random model in the run folder. Collective.
std::string start_model(const config::RunConfig& config, comm::Group& world) {
  if (!config.model.path.empty()) return config.model.path;
  const std::string dir = config.run.dir + "/init/hf";
  if (world.rank() == 0 && !policy::holds_model(dir)) policy::write_random_model(dir, config.model, config.run.seed);
  world.barrier();
  return dir;
}

// Supervised steps generate next to nothing, in the layout of training. Where some never train, all do here, as many replicas of the
// layout as there is room for.
void train_on_all_ranks(config::RunConfig& config, comm::Group& world) {
  config::ParallelOptions& p = config.parallel;
  if (!p.has_sides()) p.rollout_layout = "";
  if (!p.has_sides()) return;
  model::Layout layout = model::parse_layout(p.train_layout, "parallel.train_layout");
  if (world.size() % layout.world() != 0)
    throw UserError("parallel.train_layout",
                    join_text(p.train_layout, " does not divide the run's ", world.size(), " ranks, and all take part in supervised steps"),
                    "a divisor, or supervised.steps 0");
  layout.dp *= world.size() / layout.world();
  p.train_layout = model::to_string(layout);
  p.rollout_layout = "";
  p.placement = "colocated";
}

// Where a run begins, as all ranks read it once. Collective: a rank that refuses takes back what it made of the run folder, and nobody
// may read there then.
struct Start {
  std::string model_dir;
  model::ModelConfig model;
  model::Products products;  // of a warm start
};
Start start_of(const config::RunConfig& config, comm::Group& world) {
  const std::string dir = start_model(config, world);
  (void)checkpoint::ModelDir(dir);  // has weights
  Start start{dir, model::read_config(dir), {}};
  world.barrier();
  return start;
}

// What options and layouts ask of the model, before any work.
void check_model(const config::RunConfig& c, const config::Layouts& layouts, const model::ModelConfig& model, bool supervised, bool rl) {
  model::check_layout(layouts.train, model, model::Use::kTraining, "parallel.train_layout");
  model::check_layout(layouts.rollout, model, model::Use::kRollout, "parallel.rollout_layout");
  if (supervised) train::check_options(c.supervised.train, model, c.model.lora, "supervised");
  if (rl) train::check_options(c.train, model, c.model.lora, "train");
  if (rl && config::algorithm_of(c).needs_critic()) (void)policy::critic_config(c, layouts.train, model);
}

// The run itself counts each prompt's tokens, too, but that comes after the warm start.
void check_context(const config::RunConfig& c, const model::ModelConfig& model) {
  if (const int64_t most = c.rollout.sampling.max_new_tokens; most >= model.max_positions)
    throw UserError("rollout.max_new_tokens", join_text("is ", most, ", and prompt and response share a context of ", model.max_positions),
                    join_text("at most ", model.max_positions - 1));
}

RunSummary supervise(const RunRequest& request, comm::Group& world, RunFolder* folder, Start& start) {
  policy::Rank rank(request.config, config::layouts_of(request.config, world.size()), world);
  const RunSummary summary = SupervisedRun(request, rank.parts, folder, start.model_dir, start.model).run();
  start.products = rank.compute.products();  // a resumed run took those of its checkpoint
  return summary;
}

// Whether the model is what the supervised steps of this recipe end with, so that there are none left: the hf of a run folder.
bool is_warm(const config::RunConfig& config) {
  std::error_code failed;
  const fs::path dir = fs::canonical(config.model.path, failed), recipe = dir.parent_path() / "config.yaml";
  if (failed || dir.filename() != "hf" || !fs::exists(recipe, failed)) return false;
  try {
    return config::equal_section(config::load_config(recipe.string(), {}), config, "supervised");
  } catch (const UserError&) {
    return false;  // of another version
  }
}

// Whether a run that goes on began with a warm start of another model: then the one that is named now stands for its end.
bool began_elsewhere(const RunRequest& request) {
  const std::string dir = request.config.run.dir + "/warm_start";
  if (!request.resume || !policy::holds_model(dir + "/hf") || !fs::exists(dir + "/config.yaml")) return false;
  const std::string before = config::load_config(dir + "/config.yaml", {}).model.path;
  return fs::weakly_canonical(before) != fs::weakly_canonical(request.config.model.path);
}

bool has_steps(const std::string& folder) { return !checkpoint::newest_first(folder + "/checkpoint").empty(); }

// Supervised steps that would come after steps of RL. Collective.
void check_comes_first(const RunRequest& request, comm::Group& world) {
  const std::string& dir = request.config.run.dir;
  const bool late = world.rank() == 0 && request.resume && has_steps(dir) && !policy::holds_model(dir + "/warm_start/hf");
  if (comm::any_of(world, late))
    throw UserError("supervised.steps",
                    join_text("is ", request.config.supervised.steps, ", and the run in ", dir, " began without a warm start"),
                    "0, and model.path as config.yaml of that run has it");
}

// Whether supervised steps come before RL. Collective.
bool begins_warm(const RunRequest& request, comm::Group& world) {
  const config::RunConfig& config = request.config;
  if (config.supervised.steps == 0) return false;
  const bool done = world.rank() == 0 && !config.model.path.empty() && (is_warm(config) || began_elsewhere(request));
  if (!comm::any_of(world, done)) {
    check_comes_first(request, world);
    return true;
  }
  if (world.rank() == 0) log::info("no warm start: ", config.model.path, " has the supervised steps behind it");
  return false;
}

// Calls on the first rank, beside which the others ask whether it is done: it may take longer than ranks wait. Collective.
void on_first_rank(comm::Group& world, const std::function<void()>& call) {
  constexpr std::chrono::milliseconds kMoment{50};
  std::future<void> called;
  if (world.rank() == 0) called = std::async(std::launch::async, call);
  while (!comm::any_of(world, called.valid() && called.wait_for(kMoment) == std::future_status::ready)) continue;
  if (called.valid()) called.get();
}

// Supervised steps on the start model, in a run folder of their own inside this one. Collective.
Start warm_start(const RunRequest& request, comm::Group& world, Start start) {
  const std::string dir = request.config.run.dir + "/warm_start";
  if (!comm::any_of(world, world.rank() == 0 && policy::holds_model(dir + "/hf"))) {  // written last
    RunRequest supervised{.config = request.config, .resume = true, .stop = request.stop};
    supervised.config.run.dir = dir;
    supervised.config.eval.before = supervised.config.eval.after = false;  // RL evaluates what it begins with
    supervised.config.eval.every_steps = 0;
    supervised.config.monitor.sinks.clear();  // they have the run, whose steps count anew
    train_on_all_ranks(supervised.config, world);
    std::unique_ptr<RunFolder> folder;
    on_first_rank(world, [&] {
      log::info("== warm start: at most ", supervised.config.supervised.steps, " supervised steps");
      folder = std::make_unique<RunFolder>(dir, supervised.config, fs::exists(dir) ? EarlierRun::kResume : EarlierRun::kRefuse);
    });
    supervise(supervised, world, folder.get(), start);
  } else {
    start.products = products_of_run(dir, world);
  }
  world.barrier();
  const config::ModelOptions& o = request.config.model;
  if (o.lora.rank > 0 && o.dtype == "bfloat16" && world.rank() == 0)
    log::warning("warm start: its adapters are merged, and RL begins with the sum rounded to bfloat16, which loses part of a small change "
                 "(model.dtype=float32 keeps it)");
  start.model_dir = dir + "/hf";
  start.model = model::read_config(start.model_dir);
  return start;
}

std::vector<data::EvalAnswer> answers_at(const RunFolder& folder, int64_t step) {
  data::SampleReader reader(folder.path("samples.sqlite"));
  for (const data::StepSummary& s : reader.eval_steps(0))
    if (value(s.step) == step) return reader.evals(data::StepId{step}, 0, 3);
  return {};
}

void finish(RunFolder& folder, const RunSummary& summary, const RunRequest& request) {
  folder.samples().finish(request.stop);
  folder.write_summary(summary);
  const auto first_answers = summary.before ? answers_at(folder, 0) : std::vector<data::EvalAnswer>{};
  print_result(summary, first_answers, answers_at(folder, summary.steps), request.config);
  folder.end_sinks(sink::End::kFinished);
  log::stop_file();
}

// Whether a resume finds a checkpoint, of the run or of its warm start, as rank 0 sees it. Collective.
bool goes_on(const RunRequest& request, comm::Group& world) {
  const std::string& dir = request.config.run.dir;
  const bool looks = request.resume && world.rank() == 0;
  return comm::any_of(world, looks && (has_steps(dir) || has_steps(dir + "/warm_start") || policy::holds_model(dir + "/warm_start/hf")));
}

// What a probe decides, unless the run goes on as an earlier start decided. Collective.
void fit(RunRequest& request, Start& start, comm::Group& world, RunFolder* folder) {
  if (!request.fit_but || goes_on(request, world)) return;
  fit::Fitted fitted = fit::fitted(request.config, {start.model_dir, start.model, start.products}, *request.fit_but, world);
  request.config = fitted.config;
  start.products = fitted.products;
  if (folder) folder->keep_recipe(request.config);
}

// One rank of `tandem run`.
RunSummary reinforce_on_rank(const RunRequest& asked, comm::Group& world, RunFolder* folder) {
  RunRequest request = asked;
  const config::RunConfig& config = request.config;
  const config::Layouts layouts = config::layouts_of(config, world.size());
  Start start = start_of(config, world);
  const bool warm = begins_warm(request, world);
  check_model(config, layouts, start.model, warm, true);
  if (warm && request.replay.empty()) check_context(config, start.model);
  fit(request, start, world, folder);
  if (warm) start = warm_start(request, world, std::move(start));
  if (!request.replay_decisions.empty() && !config.run.parity) start.products = products_of_run(request.replay_decisions, world);
  if (folder) log::also_to_file(folder->path("log.txt"));  // the warm start had its own
  if (folder) serve::say_not_followed(start.model_dir, config.rollout.sampling);
  if (folder && !request.about_correction.empty()) log::info(request.about_correction);
  policy::Rank rank(config, layouts, world, start.products);
  const planner::Schedule schedule = config::schedule_of(config, layouts, !request.replay.empty());
  return RlRun(request, rank.parts, folder, {start.model_dir, start.model, schedule}).run();
}

// One rank of `tandem sft`.
RunSummary supervise_on_rank(const RunRequest& request, comm::Group& world, RunFolder* folder) {
  Start start = start_of(request.config, world);
  check_model(request.config, config::layouts_of(request.config, world.size()), start.model, true, false);
  return supervise(request, world, folder, start);
}

EarlierRun earlier_run(const RunRequest& request) {
  return request.resume ? EarlierRun::kResume : request.overwrite ? EarlierRun::kPutAside : EarlierRun::kRefuse;
}

// What can be refused before a rank or a folder is there.
void check_request(const RunRequest& request) {
  if (request.resume && request.overwrite)
    throw UserError("--overwrite", "starts the run again, and --resume continues it", "give one of them");
  if (request.overwrite) check_put_aside(request.config, request.replay, request.replay_decisions);
  if (request.replay_decisions.empty()) return;
  if (request.resume) throw UserError("--replay-decisions", "follows a run from its first step, and --resume goes on", "one of both");
  if (!request.replay.empty()) throw UserError("--replay-decisions", "generates, and --replay does not", "one of both");
  if (request.fit_but)
    throw UserError("--replay-decisions", "takes the sizes of that run, and --fit measures some", "its config.yaml, without --fit");
  (void)data::DecisionReader(request.replay_decisions);
}

// What the recipe names as on a hub is fetched once, and all ranks have its path, which config.yaml gets. Collective.
config::RunConfig with_local_paths(const RunRequest& request, comm::Group& world) {
  const config::RunConfig& config = request.config;
  std::string paths;
  on_first_rank(world, [&] {
    const std::vector<hub::Place> earlier = request.resume ? hub::places_of_run(config.run.dir) : std::vector<hub::Place>();
    for (const std::string& path : hub::local_paths(config, earlier, {config.run.fetch_timeout_s, request.stop})) paths += path + '\n';
  });
  std::istringstream lines(comm::text_of_first(world, paths));
  std::vector<std::string> texts;
  for (std::string path; std::getline(lines, path);) texts.push_back(path);
  return hub::with_texts(config, texts);
}

// A reward that cannot score ends the command where nothing is made yet. A replay has its scores, supervised steps may need none; a host
// knows its own function.
void try_reward(const RunRequest& request, bool supervised) {
  const config::RunConfig& c = request.config;
  const bool evaluates = !c.data.eval.empty() && (c.eval.before || c.eval.after || c.eval.every_steps > 0);
  const bool scores = evaluates || (supervised ? c.supervised.stop_at_accuracy > 0 : request.replay.empty());
  if (!scores || request.hooks.reward) return;
  const reward::Options reward = reward::for_responses_of(c.rollout.sampling.max_new_tokens, c.reward);
  const serve::RewardTrial trial{reward, c.data, c.model.path, c.schedule.queue.group_size, c.schedule.queue.take_timeout_s};
  serve::try_reward(trial, request.stop);
  if (c.has_episodes()) serve::try_environment(trial, *policy::environment_of(c));
}

// A function of Python that the recipe names must have come with the request.
void check_functions(const RunRequest& request) {
  const algo::Options& o = request.config.algo;
  const auto check = [](const char* option, const std::string& value, bool is_there) {
    if (algo::names_function(value) && !is_there)
      throw UserError(option, "names " + value + ", and this process has no Python", "`tandem run`, or tandem.run in Python");
  };
  if (request.hooks.reward && request.config.has_workers() && request.replay.empty())
    throw UserError("reward", "is a function of this process, and workers score what they generate",
                    "reward.rule: python with reward.python, which workers start themselves, or no workers");
  check("algo.loss", o.loss, static_cast<bool>(request.hooks.loss));
  check("algo.advantage", o.advantage, static_cast<bool>(request.hooks.advantage));
}

// What algo.correction auto comes to, by what is known now and what a checkpoint to go on from has. Collective.
algo::Options resolved_correction(RunRequest& request, comm::Group& world) {
  const config::RunConfig& c = request.config;
  if (c.algo.correction != "auto") return c.algo;
  const std::string before = request.resume ? correction_of_run(c.run.dir, world) : "";
  const bool has_experts = !c.model.path.empty() && model::read_config(c.model.path).moe.num_experts > 0;
  const algo::Options resolved = config::resolved_correction(c, has_experts, before);
  if (world.rank() > 0) return resolved;
  std::string why;
  for (const std::string& each : config::known_differences(c, has_experts)) why += (why.empty() ? "" : ", ") + each;
  if (before == kNotSaid)
    log::warning("resume: the checkpoint does not say whether it was trained with a correction (algo.correction=none goes on without)");
  if (why.empty()) why = before == resolved.correction ? "as the checkpoint has it" : "rollout and training are the same policy";
  request.about_correction = "algo.correction: auto is " + resolved.correction + ": " + why;
  return resolved;
}

// What both kinds of runs share: ranks, the run folder, the end.
RunSummary run_on_ranks(RunRequest asked, bool all_train, RunSummary (*on_rank)(const RunRequest&, comm::Group&, RunFolder*)) {
  if (comm::is_started_rank()) log::quiet(true);  // rank 0 has said so
  check_request(asked);
  if (!asked.replay.empty()) {  // nothing is generated that a clock could decide about, or a worker do
    asked.config.schedule.mode = "deterministic";
    if (asked.config.has_workers()) log::info("a replay generates nothing: its workers are not started");
    asked.config.workers = {};
  }
  asked.config.reward.notices = std::make_shared<monitor::Notices>();  // of the ranks of this process, in this run
  RunSummary result;
  std::unique_ptr<RunFolder> own;  // outlives all ranks: they may still read there when it goes
  launch_ranks(asked.config, asked.host, [&](comm::Group& world) {
    RunRequest request = asked;
    if (comm::are_processes(world) && world.rank() > 0) request.config.reward.notices->defer();
    request.config = with_local_paths(asked, world);
    if (!all_train) request.config.algo = resolved_correction(request, world);
    if (!asked.replay_decisions.empty())
      check_follows(request.config, asked.replay_decisions, data::DecisionReader(asked.replay_decisions));
    if (asked.fit_but && goes_on(asked, world)) request.config = fit::as_before(request.config, request.config.run.dir, *asked.fit_but);
    check_same_start(request.config, {asked.resume, asked.overwrite, asked.replay, asked.replay_decisions}, world);
    if (all_train) train_on_all_ranks(request.config, world);
    on_first_rank(world, [&] {
      sink::require_packages(request.config.monitor);
      if (!asked.resume && request.config.model.path.empty()) policy::check_random_model(request.config);
      try_reward(request, all_train);
      if (request.config.has_workers()) worker::try_listening(request.config);
      try_hooks(request.hooks, request.config);
    });
    on_first_rank(world, [&] {
      own = std::make_unique<RunFolder>(request.config.run.dir, request.config, earlier_run(request), request.hooks.functions);
    });
    RunFolder* folder = world.rank() == 0 ? own.get() : nullptr;
    world.barrier();
    try {
      const RunSummary summary = on_rank(request, world, folder);
      if (!folder) return;
      finish(*folder, summary, request);
      result = summary;
    } catch (const Interrupted&) {
      if (folder) folder->end_sinks(sink::End::kStopped);
      throw;
    }
  });
  return result;
}

}  // namespace

RunSummary run_rl(const RunRequest& request) {
  config::validate(request.config, "run");
  check_functions(request);
  return run_on_ranks(request, false, reinforce_on_rank);
}

RunSummary run_supervised(const RunRequest& request) { return run_on_ranks(request, true, supervise_on_rank); }

}  // namespace tandem::runtime
