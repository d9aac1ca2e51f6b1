// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/rl_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tandem/algo/kl_control.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/config/algorithm.h"
#include "tandem/device/process.h"
#include "tandem/policy/critic.h"
#include "tandem/runtime/stage/evaluator.h"
#include "tandem/runtime/stage/step_record.h"

namespace tandem::runtime {
namespace {

// Stands for what a stage or another rank does: one rank of a replica scores its groups.
std::unique_ptr<reward::Rule> later_rule() {
  const auto none = [](const reward::Answer&) -> reward::Score { throw InternalError("scored before the stage of the reward model"); };
  return std::make_unique<reward::FunctionRule>("model", none, reward::FunctionRule::Needs{false, false});
}

std::unique_ptr<reward::Rule> reward_of(const policy::RunParts& parts, const Hooks& hooks, serve::RewardModels& models) {
  const config::RunConfig& config = parts.config;
  if (hooks.reward) return reward::batch_rule("host", hooks.reward);
  if (config::scores_in_stage(config) || !parts.ranks.speaks_for_rollout()) return later_rule();
  const reward::Options options = reward::for_responses_of(config.rollout.sampling.max_new_tokens, config.reward);
  if (config.parallel.placement != "fully_colocated") return reward::make_reward(options, models.maker());
  return reward::make_reward(options, [](const reward::Options&) -> std::unique_ptr<reward::Rule> {
    throw UserError("parallel.placement", "is fully_colocated, and the reward model is one of several rules",
                    "reward.rule: model alone, or parallel.placement: colocated");
  });
}

// The weight of the KL term in the next step. Ranks that do not train use none.
double adapted_kl(const algo::Options& options, double coef, const StepData& step) {
  if (!step.kl_reference && step.report.skipped) return coef;  // nothing was measured
  const double measured = step.kl_reference.value_or(step.report.kl_ref);
  if (!std::isfinite(measured)) return coef;
  algo::AdaptiveKl control{coef, options.kl_target, options.kl_horizon};
  control.update(measured, static_cast<double>(step.rows.size()));
  return control.coef;
}

constexpr size_t kMostDeviations = 64;

// The median of the last ones, of which `deviations` has those before: one batch that stands out moves it little.
double median_of(std::vector<double> deviations) {
  if (deviations.empty()) return 0;
  const auto middle = deviations.begin() + (std::ssize(deviations) - 1) / 2;
  std::nth_element(deviations.begin(), middle, deviations.end());
  return *middle;
}

double usual_deviation_after(double deviation, std::vector<double>& deviations) {
  if (deviation > 0) deviations.push_back(deviation);  // a batch of which all are alike says nothing
  if (deviations.size() > kMostDeviations) deviations.erase(deviations.begin());
  return median_of(deviations);
}

// What may make scores fall, by what the run does and by what the step has seen.
std::string causes_of_fall(const config::RunConfig& c, const monitor::Recorder& recorder) {
  std::vector<std::string> causes;
  const std::string failed = std::string("reward/") + reward::kFailedPart;
  const double failed_share = recorder.current(failed), cut_share = recorder.current("data/truncated_fraction");
  if (failed_share > 0) causes.push_back(join_text("the reward fails (", failed, " ", failed_share, ")"));
  if (cut_share > 0.2) causes.push_back(join_text("answers are cut at rollout.max_new_tokens (data/truncated_fraction ", cut_share, ")"));
  causes.push_back(join_text("train.lr ", c.train.lr, " is too high"));
  if (c.algo.advantage == "gae") causes.push_back(join_text("the critic does not keep up (critic.lr ", c.critic.train.lr, ")"));
  if (c.algo.advantage == "remax") causes.push_back("greedy answers score far above samples, so that nearly all advantages are negative");
  if (c.algo.advantage == "reinforce_pp") causes.push_back("answers are compared with the batch, not with their group");
  if (c.algo.kl_coef == 0 && c.algo.advantage != "distillation") causes.push_back("nothing pulls to the start (algo.kl_coef 0)");
  if (c.staleness() > 0 && c.algo.correction == "none") causes.push_back("older samples are not corrected (algo.correction none)");
  std::string text;
  for (const std::string& cause : causes) text += (text.empty() ? "" : "; ") + cause;
  return text;
}

// A reference of its own, such as a teacher, may have another shape than the actor.
model::ModelConfig reference_config(const config::RunConfig& config, const model::Layout& layout, const model::ModelConfig& actor) {
  const std::string& path = config.model.ref_model_load_path;
  if (path.empty()) return actor;
  const model::ModelConfig reference = model::read_config(path);
  if (reference.vocab_size != actor.vocab_size)
    throw UserError("model.ref_model_load_path",
                    join_text(path, " has ", reference.vocab_size, " tokens, and the actor ", actor.vocab_size),
                    "a model with the actor's tokenizer");
  model::check_layout(layout, reference, model::Use::kTraining, "model.ref_model_load_path " + path + " under parallel.train_layout");
  return reference;
}

// Null where a stage or another rank scores.
const reward::Rule* scoring_rule(const policy::RunParts& parts, const reward::Rule& rule) {
  return config::scores_in_stage(parts.config) || !parts.ranks.speaks_for_rollout() ? nullptr : &rule;
}

void show(LiveLine* live, const std::string& what, int64_t num_samples = 0) {
  if (live) live->stage(what, num_samples);
}

void pause(SampleSource& source) {
  if (Generation* generation = source.generation()) generation->pause(false);
}

std::optional<double> stream_idle_s(SampleSource& source) {
  const Generation* generation = source.generation();
  return generation ? generation->idle_s() : std::nullopt;
}

// For others, since the start, as the stage counts it: where a stream generates in the stage, what that rests.
double waited_s_so_far(SampleSource& source, const policy::Ranks& ranks, planner::StageKind stage) {
  const std::optional<double> stream_s = stream_idle_s(source);
  return stream_s && (ranks.only_generates() || stage == planner::StageKind::kRollout) ? *stream_s : comm::waited_s_so_far();
}

// Stages whose memory stays on the device may begin early. Where ranks that train generate, too, they have no time to spare; workers
// leave them some. Collective.
EarlyStages early_stages(const policy::RunParts& parts, const planner::Schedule& schedule, const policy::Residency& residency) {
  const config::RunConfig& config = parts.config;
  EarlyStages early{.budget_tokens = std::numeric_limits<int64_t>::max()};
  const bool waits =
      config.has_workers() || (config.is_free() && parts.ranks.placement.kind == planner::PlacementKind::kSplit);
  if (!waits) return early;
  for (const auto& [kind, budget] : {std::pair(planner::StageKind::kReference, config.train.reference_micro_batch_tokens),
                                     std::pair(planner::StageKind::kOldLogprob, config.train.logprob_micro_batch_tokens),
                                     std::pair(planner::StageKind::kValues, config.critic.value_micro_batch_tokens)}) {
    if (!schedule.has(kind)) continue;
    const bool may_leave = parts.ranks.trains() && !residency.is_always_here(schedule.stage(kind));
    if (comm::any_of(parts.ranks.world, may_leave)) continue;
    early.stages.push_back(kind);
    early.budget_tokens = std::min(early.budget_tokens, budget);
  }
  return early;
}

// A reward model that scores in a stage of its own scores evaluations, too, also those of a replay, which has no such stage.
planner::Stage scoring_stage() {
  return {planner::StageKind::kReward, "reward", 0, {}, {}, {planner::Resident::kRewardModel}, {}, {}};
}

}  // namespace

RlRun::RlRun(const RunRequest& request, const policy::RunParts& parts, RunFolder* folder, const RunStart& start)
    : request_(request),
      parts_(parts),
      config_(parts.config),
      schedule_(start.schedule),
      tokenizer_(text::Tokenizer::load(start.model_dir)),
      reward_models_(serve::kBesideGeneration, parts.memory.device),
      reward_(reward_of(parts, request.hooks, reward_models_)),
      environment_(parts.ranks.speaks_for_rollout() ? policy::environment_of(parts.config) : nullptr),
      prompts_(serve::data_for(*reward_, config_.data, config_.has_episodes()), data::Split::kTrain,
               serve::PromptText{tokenizer_, start.model_dir}),
      algorithm_(config::algorithm_of(config_)),
      actor_(parts, start.model, config_.train),
      ledger_(parts, folder, start.model_dir, config_.run.steps),
      homes_(parts.ranks.placement, parts.ranks.rollout_layout),
      bodies_(parts.ranks, homes_, config_.schedule.queue.group_size),
      skew_(parts.ranks.world) {
  if (!config_.data.eval.empty())
    eval_prompts_.emplace(serve::data_for(*reward_, config_.data, config_.has_episodes()), data::Split::kHeldOut,
                          serve::PromptText{tokenizer_, start.model_dir});
  check_contexts();
  if (request.hooks.reward && config::scores_in_stage(config_))
    throw UserError("reward", "is a function, and the recipe's reward is a model in a stage of its own", "reward.rule without a model");
  if (request.hooks.advantage && config_.algo.whiten == "on")
    throw UserError("advantage", "gives a number for each response, and algo.whiten is on, which is of tokens", "algo.whiten: auto");
  if (request.hooks.advantage && (algorithm_.whitens || algorithm_.rewards_tokens() || algorithm_.advantage == algo::Advantage::kRemax))
    throw UserError("advantage", "gives a number for each response, and algo.advantage is " + config_.algo.advantage + ", of tokens",
                    "algo.advantage: grpo, and no KL in the reward");
  if (config_.schedule.routing_replay && actor_.route_width() == 0)
    throw UserError("schedule.routing_replay", "is on, and " + start.model_dir + " has no experts", "false for a dense model");
  ledger_.files().load_start(actor_.trained());
  actor_.register_with(residency_);
  if (schedule_.has(planner::StageKind::kReference) && !config::start_is_reference(config_) && parts.ranks.trains()) load_reference();
  if (config::scores_in_stage(config_) && parts.ranks.trains()) load_reward_model();
  if (schedule_.has(planner::StageKind::kValues)) load_critic();
  make_source();
}

// Before any work: what could not be generated at the end must not start.
void RlRun::check_contexts() const {
  const int64_t positions = actor_.config().max_positions;
  if (schedule_.has(planner::StageKind::kRollout))
    prompts_.require_context(config_.rollout.sampling.max_new_tokens, "rollout.max_new_tokens", positions);
  if (eval_prompts_ && (config_.eval.before || config_.eval.after || config_.eval.every_steps > 0))
    eval_prompts_->require_context(config_.eval.sampling.max_new_tokens, "eval.max_new_tokens", positions);
}

// When its turn comes it finds the room that it will have in each step.
void RlRun::load_reference() {
  enter(schedule_.stage(planner::StageKind::kReference));
  policy::Memory& memory = parts_.memory;
  reference_ = std::make_unique<model::ModelOnRank>(
      reference_config(config_, parts_.ranks.train_layout, actor_.config()), parts_.ranks.train_place(), parts_.compute.train(),
      device::Home{memory.device, "reference_weights", &memory.host, device::Keep::kOriginal});
  const std::string& other = config_.model.ref_model_load_path;
  reference_->load(other.empty() ? ledger_.files().start_dir() : other);
  if (parts_.ranks.placement.kind == planner::PlacementKind::kFullyColocated || config_.memory.offload_reference)
    residency_.add(planner::Resident::kReference, *reference_->memory());
}

void RlRun::load_reward_model() {
  enter(scoring_stage());
  staged_reward_ =
      std::make_unique<policy::StagedReward>(config_.reward, parts_.ranks.train_place(), parts_.memory.device, parts_.memory.host);
  residency_.add(planner::Resident::kRewardModel, staged_reward_->memory());
}

void RlRun::load_critic() {
  enter(schedule_.stage(planner::StageKind::kUpdateCritic));
  critic_ = std::make_unique<policy::TrainedRole>(
      parts_, policy::critic_setup(config_, policy::critic_config(config_, parts_.ranks.train_layout, actor_.config())));
  critic_->load(config_.critic.path.empty() ? ledger_.files().start_dir() : config_.critic.path);
  if (parts_.ranks.placement.kind == planner::PlacementKind::kFullyColocated || config_.critic.offload)
    critic_->register_with(residency_, {true, true, true});
  trained_.push_back(critic_.get());
}

void RlRun::make_source() {
  if (schedule_.has(planner::StageKind::kReplay)) {
    source_ = make_replay(request_.replay, config_.run.steps, parts_.ranks, bodies_, request_.stop);
    return;
  }
  int64_t longest = prompts_.longest_prompt() + config_.rollout.sampling.max_new_tokens;  // of a prompt and its response
  if (eval_prompts_) longest = std::max(longest, eval_prompts_->longest_prompt() + config_.eval.sampling.max_new_tokens);
  std::function<void(int64_t, int64_t)> tell;
  if (LiveLine* live = ledger_.live()) tell = [live](int64_t samples, int64_t tokens) { live->count(samples, tokens); };
  if (auto early = early_stages(parts_, schedule_, residency_); !early.stages.empty()) {
    early.rows = [this](std::span<const data::Group> heads) { return rows_of_groups(heads, roles()); };
    early.pass = [this](planner::StageKind stage, const std::vector<train::Row>& rows) { return values_of_rows(stage, rows, roles()); };
    early_.emplace(parts_.ranks, bodies_, config_.schedule.queue.group_size, std::move(early));
  }
  if (config_.has_workers()) {
    const bool tells_answers = reward_->reads_gold() || config_.has_episodes();
    source_ = make_worker_source(WorkerParts{config_, parts_.ranks, actor_, prompts_, bodies_, tells_answers,
                                             early_ ? &*early_ : nullptr, ledger_.files().start_dir(), longest, request_.stop,
                                             std::move(tell)});
    return;
  }
  if (!request_.replay_decisions.empty()) followed_.emplace(request_.replay_decisions);
  const model::Decoder* decoder = parts_.ranks.rolls_out() ? &actor_.rollout_decoder() : nullptr;
  const reward::Rule* rule = scoring_rule(parts_, *reward_);
  source_ = std::make_unique<RolloutRole>(RolloutParts{config_, parts_.ranks, parts_.memory, parts_.recorder, actor_.config(), decoder,
                                                       tokenizer_, prompts_, rule, environment_, homes_, bodies_,
                                                       std::min(actor_.config().max_positions, longest),
                                                       schedule_.has(planner::StageKind::kAhead), request_.stop,
                                                       request_.hooks.most_tokens, tell, request_.hooks.stepped,
                                                       followed_ ? &*followed_ : nullptr, early_ ? &*early_ : nullptr});
  rollout::Engine* engine = source_->generation()->engine();
  if (!engine || residency_.empty() || (config_.is_free() && !parts_.ranks.trains())) return;  // the last: a stream that never closes
  residency_.add({planner::Resident::kKvCache, [engine] { return engine->counts().blocks == 0; },
                  [engine] { return engine->release_memory(), int64_t{0}; },
                  [] { return int64_t{0}; }});  // it comes with the weights, which a closed stream takes when it opens
}

Roles RlRun::roles() {
  return {parts_,   algorithm_, actor_,   reference_.get(),     critic_.get(),           staged_reward_.get(), *source_,
          early_ ? &*early_ : nullptr, bodies_, prompts_, ledger_.samples(), ledger_.state().lr_steps, request_.hooks};
}

void RlRun::enter(const planner::Stage& stage) {
  const double begin = now_s();
  double waited_s = 0;
  const int64_t copied = residency_.enter(stage, [&] {
    ledger_.files().let_go();
    waited_s = now_s() - begin;
  });
  if (residency_.empty()) return;
  parts_.recorder.add("time/offload_s", now_s() - begin - waited_s);
  parts_.recorder.add("memory/offload_copied_bytes", static_cast<double>(copied));
}

void RlRun::restore_or_start() {
  enter(schedule_.stage(planner::StageKind::kUpdate));
  RunState& state = ledger_.state();
  bool is_resumed = false;
  if (request_.resume) {
    const bool needs_start = actor_.trained().lora() || (reference_ && config_.model.ref_model_load_path.empty());
    const auto bring = [&](const policy::TrainedRole& role) {
      enter(schedule_.stage(&role == critic_.get() ? planner::StageKind::kUpdateCritic : planner::StageKind::kUpdate));
    };
    const bool found = ledger_.resume(trained_, {needs_start, bring});
    if (config_.algo.kl_target == 0) state.kl_coef.reset();  // what the recipe says now counts
    if (found && state.kl_coef) algorithm_.kl_coef = *state.kl_coef;
    if (found) algorithm_.usual_deviation = median_of(state.deviations);
    is_resumed = found;
    if (found) source_->restore({state.next_group, std::exchange(state.queue, {}), state.version});
    if (parts_.ranks.is_first())
      found ? log::info("resuming after step ", state.step, " of ", config_.run.steps,
                        state.step >= config_.run.steps ? ": nothing is left to do; --steps says how many there are in all" : "")
            : log::info("no checkpoint yet: starting over");
  }
  state.lr_steps = train::lr_steps_of(config_.train, state.lr_steps, config_.run.steps);
  if (state.before && state.step == 0) record_eval(parts_.recorder, *state.before);  // stopped before the step whose metrics report it
  ledger_.open();
  ledger_.keep_decisions(is_resumed ? data::resumed_line(data::StepId{state.step})
                                    : data::begun_line(to_text(parts_.ranks), state.lr_steps));
  give_rollout_weights();
}

void RlRun::announce() const {
  if (!parts_.ranks.is_first()) return;
  const policy::Ranks& r = parts_.ranks;
  log::info(planner::to_text(schedule_), config_.is_free() ? ", free, " : ", ", config_.parallel.placement, ": train ",
            model::to_string(r.train_layout),
            to_text(r.placement.train), config_.has_workers() ? ", workers generate, evaluations " : ", rollout ",
            model::to_string(r.rollout_layout), to_text(r.placement.rollout), actor_.aliased() ? ", one copy of the weights" : "");
  for (const auto& [what, name] : {std::pair("loss", config_.algo.loss), std::pair("advantage", config_.algo.advantage)})
    if (algo::names_function(name) && !std::ranges::count(request_.hooks.functions, what, &HostFunction::option))
      log::info("the ", what, " is the function ", name, ", whatever algo.name says");
  if (config_.algo.advantage == "reinforce_pp" && config_.algo.kl_coef == 0)
    log::warning("algo.advantage reinforce_pp compares answers with the whole batch, and nothing pulls to the start: scores may fall once ",
                 "they have risen (algo.kl_coef=0.1 with algo.kl_estimator=k2, as its source has one, or algo.name=reinforce_pp_baseline; ",
                 "docs/algorithms.md)");
  for (const auto& [option, name, file] : request_.hooks.functions) log::info("the ", option, " is the function `", name, "`");
  const config::MemoryOptions& m = config_.memory;
  const auto is_idle = [](const std::string& option, const char* why) { log::info(option, " has nothing to do: ", why); };
  if (m.offload_train_param && actor_.aliased()) is_idle("memory.offload_train_param", "rollout generates with the weights that train");
  if (m.offload_train_optimizer && config_.train.swap_optimizer)
    is_idle("memory.offload_train_optimizer", "with train.swap_optimizer it is on the host already");
  if (m.offload_reference && !reference_) is_idle("memory.offload_reference", "this run has no weights of a reference model");
  if (!critic_)
    for (const std::string& option : config::changed_options(config_, "critic")) is_idle(option, "this algorithm has no critic");
}

RunSummary RlRun::run() {
  ledger_.start_clock();
  restore_or_start();
  announce();
  StepData step;
  try {
    return run_to_end(step);
  } catch (const StepFailed& e) {  // also where the last step has a checkpoint: the queue may know more by now
    pause(*source_);
    source_->give_back(step.batch);
    end_saved(e, ledger_.state().step, [this] { save(); });
  }
}

RunSummary RlRun::run_to_end(StepData& step) {
  evaluate_before();
  RunState& state = ledger_.state();
  if (!state.unconcluded.empty()) {
    for (const auto& [name, value] : state.unconcluded) parts_.recorder.set(name, value);
    conclude_step();
  }
  if (parts_.ranks.is_first())
    state.step < config_.run.steps ? log::info("== training: step ", state.step + 1, " to ", config_.run.steps)
                                   : log::info("step ", state.step, " is the last that run.steps asks for; --steps N goes further");
  planner::Interpreter machine(schedule_, {state.step + 1, config_.run.steps}, parts_.ranks.world.rank());
  while (!machine.done()) {
    const planner::StageRun next = machine.may_start().at(0);
    if (value(step.id) != next.step) {
      step = StepData{data::StepId{next.step}, data::PolicyVersion{state.version}, now_s()};
      (void)comm::take_waited_s();  // what an evaluation or a checkpoint waited
      idle_before_s_ = stream_idle_s(*source_).value_or(0);
    }
    machine.start(next);
    const StageEnd how = perform(machine.stage(next), step);
    if (how == StageEnd::kStopped) stop("");
    if (how == StageEnd::kAgain) {
      machine.repeat(next);
      step = StepData{step.id, step.before, step.begin_s};
      give_rollout_weights();
      continue;
    }
    machine.end(next);
    if (machine.done_with(next.step)) finish_step(step);
  }
  pause(*source_);
  if (!ledger_.is_saved()) save();
  RunSummary summary = ledger_.summary();
  if (eval_prompts_ && config_.eval.after) {
    summary.after = last_eval_ ? last_eval_ : evaluate(data::StepId{state.step});
    if (!summary.after) throw Interrupted(join_text("stopped after step ", state.step, ", in the last evaluation; --resume continues"));
    pause(*source_);
  }
  return summary;
}

StageEnd RlRun::perform(const planner::Stage& stage, StepData& step) {
  const double begin = now_s(), waited_before_s = waited_s_so_far(*source_, parts_.ranks, stage.kind);
  enter(stage);
  device::Arena& device = parts_.memory.device;
  (void)device.take_stage_peak_bytes();  // what left does not count
  device::name_thread(stage.name);
  const config::RunConfig& c = config_;
  const bool collects = stage.kind == planner::StageKind::kRollout;
  show(ledger_.live(), join_text("step ", value(step.id), "/", c.run.steps, "  ", stage.name),
       collects ? c.schedule.queue.groups_per_step * c.schedule.queue.group_size : 0);
  if (stage.ranks.count == parts_.ranks.world.size()) skew_.starts(stage.name, now_s());
  const StageEnd how = run_stage(stage, step, roles());
  monitor::Recorder& recorder = parts_.recorder;
  recorder.set("memory/" + stage.name + "_peak_bytes", static_cast<double>(device.take_stage_peak_bytes()));
  const double waited_s = waited_s_so_far(*source_, parts_.ranks, stage.kind) - waited_before_s;
  waited_in_stages_s_ += waited_s;
  spans_.push_back({stage.name, begin + skew_.offset_s(), now_s() + skew_.offset_s(), waited_s});
  recorder.add("time/" + stage.name + "_s", now_s() - begin);
  return how;
}

void RlRun::stop(const std::string& where) {
  pause(*source_);
  ledger_.settle();
  if (!ledger_.is_saved()) save();
  throw Interrupted(join_text("stopped after step ", ledger_.state().step, where, "; --resume continues"));
}

void RlRun::finish_step(const StepData& step) {
  device::name_thread("record");
  record_step(step, roles());
  bodies_.drop(step.batch.groups);
  RunState& state = ledger_.state();
  state.step = value(step.id);
  state.version = value(step.after());
  state.tokens += static_cast<int64_t>(step.report.sequence_tokens);
  if (config_.algo.kl_target > 0) state.kl_coef = algorithm_.kl_coef = adapted_kl(config_.algo, algorithm_.kl_coef, step);
  if (algorithm_.whitens)
    algorithm_.usual_deviation = usual_deviation_after(step.deviation, state.deviations);
  if (const BatchScores scores = scores_of(step.batch);
      state.scores.falls(state.step, scores.mean, scores.error) && parts_.ranks.is_first())
    log::warning("step ", state.step, ": the mean score has fallen to ", state.scores.recent, "; it was ", state.scores.best,
                 " about step ", state.scores.best_step, ". Likely causes: ", causes_of_fall(config_, parts_.recorder));
  if (step.report.without_signal) {
    const auto has_part = [](const data::Group& group) {
      return std::ranges::any_of(group.samples, [](const data::Sample& sample) { return !sample.parts.empty(); });
    };
    ledger_.without_signal(std::ranges::any_of(step.batch.groups, has_part));
  }
  if (!algorithm_.correction.active()) ledger_.gap(step.report);
  ledger_.record_memory();
  for (const auto& [name, seconds] : skew_.take_metrics()) parts_.recorder.set(name, seconds);
  record_spans(parts_.ranks.world, std::exchange(spans_, {}), parts_.recorder);
  ledger_.keep_decisions(source_->take_decisions());
  // A stream works on beside the stages of a rank that only generates.
  const std::optional<double> stream_s = stream_idle_s(*source_);
  const double waited_s = comm::take_waited_s(), in_stages_s = std::exchange(waited_in_stages_s_, 0);
  record_idle(parts_.ranks.world, !stream_s ? waited_s : parts_.ranks.only_generates() ? *stream_s - idle_before_s_ : in_stages_s,
              parts_.recorder);
  conclude_step();
  fail_alike(parts_.ranks.world, ledger_.fault());
  if (!step.ends.empty()) throw StepFailed(exit_code_of(UserError("", "", "")), step.ends);
}

// What is left of a step when its numbers are known. A stop during the evaluation saves the numbers, too: the resumed run
// begins here.
void RlRun::conclude_step() {
  RunState& state = ledger_.state();
  state.unconcluded.clear();  // those of a resumed step are in the recorder
  last_eval_.reset();
  const int64_t eval_every = config_.eval.every_steps, save_every = config_.checkpoint.every_steps;
  const bool last = state.step == config_.run.steps;
  if (eval_prompts_ && ((eval_every > 0 && state.step % eval_every == 0) || (last && config_.eval.after))) {
    state.unconcluded = parts_.recorder.current();
    last_eval_ = evaluate(data::StepId{state.step});
    if (!last_eval_) {
      save();
      stop(", in its evaluation");
    }
    state.unconcluded.clear();
  }
  ledger_.commit();
  ledger_.look();
  if (last || (save_every > 0 && state.step % save_every == 0)) save(!last);
}

void RlRun::save(bool behind) {
  const double begin = now_s();
  RunState& state = ledger_.state();
  show(ledger_.live(), join_text("step ", state.step, "/", config_.run.steps, "  checkpoint"));
  SourceState source = source_->state();
  ledger_.keep_decisions(source_->take_decisions());
  state.next_group = source.next_group;
  state.queue = std::move(source.queue);
  ledger_.save(trained_, behind);
  state.queue.clear();
  parts_.recorder.add("time/checkpoint_s", now_s() - begin);
  parts_.recorder.span("checkpoint", "rank 0", begin, now_s());
}

void RlRun::evaluate_before() {
  RunState& state = ledger_.state();
  if (!eval_prompts_ || !config_.eval.before || state.before || state.step > 0) return;
  if (parts_.ranks.is_first()) log::info("== evaluation before training: ", eval_prompts_->size(), " problems");
  state.before = evaluate(data::StepId{0});
  if (!state.before) {
    save();
    stop(", in the evaluation before training");
  }
  if (parts_.ranks.is_first()) log::info("before: ", accuracy_text(*state.before));
}

// Of the version that there is: for rollout after a stage that needed its memory.
void RlRun::give_rollout_weights() {
  enter(schedule_.stage(planner::StageKind::kSwitch));
  switch_weights(roles(), data::PolicyVersion{ledger_.state().version});
}

// The reward model comes for them, and then what generates again.
void RlRun::score_in_stage(std::vector<data::Group>& answers) {
  const int dp = parts_.ranks.train_layout.dp, me = parts_.ranks.train_dp_rank();
  std::vector<size_t> mine;
  std::vector<reward::Answer> asked;
  std::vector<data::Sample*> samples;
  for (size_t row = 0; row < answers.size(); ++row)  // messages do not travel
    answers[row].prompt = eval_prompts_->at_row(static_cast<int64_t>(row));
  for (data::Group& group : answers)
    for (data::Sample& sample : group.samples) {
      if (static_cast<int>(samples.size()) % dp == me) {
        mine.push_back(samples.size());
        asked.push_back(reward::answer_of(group, sample));
      }
      samples.push_back(&sample);
    }
  enter(scoring_stage());
  score_by_model(roles(), samples, mine, asked);
  give_rollout_weights();
}

std::optional<serve::EvalSummary> RlRun::evaluate(data::StepId step) {
  const double begin = now_s();
  show(ledger_.live(), join_text("step ", value(step), "/", config_.run.steps, "  evaluation of ", eval_prompts_->size(), " problems"));
  const policy::Ranks& ranks = parts_.ranks;
  Generation* generation = source_->generation();
  if (generation) generation->pause(value(step) < config_.run.steps);  // a replay may end with any step
  rollout::Engine* engine = generation ? generation->engine() : nullptr;
  Evaluation evaluation{.step = value(step), .layout = ranks.rollout_layout, .rank = ranks.rollout_rank()};
  if (ranks.rolls_out()) {
    evaluation.decoder = &actor_.rollout_decoder();
    evaluation.parameters = &actor_.rollout_parameters();
    for (int64_t row = ranks.rollout_layout.dp_rank(evaluation.rank); row < eval_prompts_->size(); row += ranks.rollout_layout.dp)
      evaluation.prompts.push_back(eval_prompts_->at_row(row));
  }
  evaluation.n = config_.eval.n;
  evaluation.seed = evaluation_seed(config_.run.seed);
  // A closed stream takes its weights later.
  const bool is_current = engine && engine->version() == data::PolicyVersion{ledger_.state().version};
  rollout::Engine* idle = is_current && !engine->running() ? engine : nullptr;
  evaluation.idle_engine = idle;
  if (idle) idle->forget_cache();  // so that neither evaluation nor training finds what the other computed
  evaluation.rule = scoring_rule(parts_, *reward_);
  evaluation.environment = environment_;
  evaluation.stop = ranks.stop_between_tokens(request_.stop);
  evaluation.stop_grading = request_.stop;
  // Unfinished sequences have the one cache that there is room for.
  const bool makes_room = engine && !evaluation.idle_engine && config_.memory.device_mib > 0;
  if (makes_room) engine->release_memory();
  std::optional<std::vector<data::Group>> answers = answers_of_all(parts_, tokenizer_, std::move(evaluation));
  if (!answers) return std::nullopt;
  if (idle) idle->forget_cache();
  if (makes_room) engine->switch_weights(actor_.rollout_parameters(), data::PolicyVersion{ledger_.state().version});
  if (generation) generation->resume();
  if (config::scores_in_stage(config_)) score_in_stage(*answers);
  serve::EvalSummary summary = serve::summarize(*answers, eval_prompts_->sets(), config_.eval.right_at);
  record_eval(parts_.recorder, summary);
  parts_.recorder.add("time/eval_s", now_s() - begin);
  if (SampleWriter* samples = ledger_.samples()) samples->append_evals(step, serve::eval_answers(*answers, *eval_prompts_));
  return summary;
}

}  // namespace tandem::runtime
