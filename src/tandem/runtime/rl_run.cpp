// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/rl_run.h"

#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/device/process.h"
#include "tandem/runtime/exchange.h"
#include "tandem/runtime/reward_model/reward_model.h"

namespace tandem::runtime {
namespace {

// Under adapters the start is still there, unless the reference is another model.
bool start_is_reference(const RunConfig& config) { return config.model.lora.rank > 0 && config.model.ref_model_load_path.empty(); }

// Stands for what a stage or another rank does.
std::unique_ptr<reward::Rule> later_rule() {
  const auto none = [](const reward::Answer&) -> reward::Score { throw InternalError("scored before the stage of the reward model"); };
  return std::make_unique<reward::FunctionRule>("model", none, reward::FunctionRule::Needs{false, false});
}

std::unique_ptr<reward::Rule> reward_of(RankContext& context) {
  const RunConfig& config = context.config;
  if (scores_in_stage(config) || !context.rolls_out()) return later_rule();
  if (config.parallel.placement != "fully_colocated")
    return reward::make_reward(config.reward, reward_models(context.device, kBesideGeneration));
  return reward::make_reward(config.reward, [](const reward::Options&) -> std::unique_ptr<reward::Rule> {
    throw UserError("parallel.placement", "is fully_colocated, and the reward model is one of several rules",
                    "reward.rule: model alone, or parallel.placement: colocated");
  });
}

queue::Needs queue_needs(const RunConfig& config) {
  queue::Needs needs;
  if (scores_in_stage(config)) needs.batch = {"response_ids"};
  return needs;
}

planner::Schedule schedule_of(const RunConfig& config, const algo::Algorithm& algorithm) {
  const planner::ScheduleNeeds needs{algorithm.needs_reference(), config.schedule.old_logprobs == "recompute", scores_in_stage(config),
                                    start_is_reference(config)};
  return config.schedule.kind == "stale" ? planner::stale_schedule(needs, config.staleness()) : planner::sync_schedule(needs);
}

}  // namespace

RlRun::RlRun(const RunRequest& request, RankContext& context, RunFolder* folder, const std::string& model_dir)
    : request_(request),
      config_(context.config),
      context_(context),
      folder_(folder),
      tokenizer_(text::Tokenizer::load(model_dir)),
      reward_(reward_of(context)),
      prompts_(data_for(*reward_, config_.data), data::Split::kTrain, PromptText{tokenizer_, model_dir}),
      algorithm_(algo::algorithm_of(config_.algo)),
      schedule_(schedule_of(config_, algorithm_)),
      actor_(context, model::read_config(model_dir), config_.train),
      queue_(config_.schedule.queue, queue_needs(config_)),
      bodies_(context),
      files_(context, config_.run.dir, model_dir),
      progress_(config_.run.steps),
      skew_(context.world) {
  if (!config_.data.eval.empty())
    eval_prompts_ =
        std::make_unique<PromptStream>(data_for(*reward_, config_.data), data::Split::kHeldOut, PromptText{tokenizer_, model_dir});
  // Before any work: what could not be generated at the end must not start.
  const int64_t positions = actor_.config().max_positions;
  if (request.replay.empty()) prompts_.require_context(config_.rollout.sampling.max_new_tokens, "rollout.max_new_tokens", positions);
  if (eval_prompts_ && (config_.eval.before || config_.eval.after || config_.eval.every_steps > 0))
    eval_prompts_->require_context(config_.eval.sampling.max_new_tokens, "eval.max_new_tokens", positions);
  if (config_.schedule.routing_replay && actor_.route_width() == 0)
    throw UserError("schedule.routing_replay", "is on, and " + model_dir + " has no experts", "false for a dense model");
  files_.load_start(actor_);
  actor_.register_with(residency_);
  if (algorithm_.needs_reference() && !start_is_reference(config_) && context.trains()) load_reference();
  if (scores_in_stage(config_) && context.trains()) load_reward_model();
  if (!request.replay.empty()) {
    replay_ = std::make_unique<data::SampleReader>(request.replay + "/samples.sqlite");
    if (const auto has = std::ssize(replay_->steps()); has < config_.run.steps)
      throw UserError("--replay " + request.replay, join_text("has the samples of ", has, " steps, run.steps is ", config_.run.steps),
                      join_text("--steps ", has, " at most"));
  } else {
    const model::Decoder* decoder = context.rolls_out() ? &actor_.rollout_model().decoder() : nullptr;
    const reward::Rule* rule = scores_in_stage(config_) || !decoder ? nullptr : reward_.get();
    rollout_ = std::make_unique<RolloutRole>(context, RolloutParts{actor_.config(), decoder, tokenizer_, prompts_, rule, queue_, bodies_,
                                                                   std::min(positions, longest_context())});
    if (decoder && !residency_.empty())
      residency_.add({planner::Resident::kKvCache, [this] { return !rollout_->has_memory(); },
                      [this] { return rollout_->release_memory(), int64_t{0}; }, nullptr});
  }
}

// When its turn comes it finds the room that it will have in each step.
void RlRun::load_reference() {
  enter(schedule_.stage(planner::StageKind::kReference));
  reference_ = std::make_unique<model::ModelOnRank>(actor_.config(), context_.train_place(), context_.gemm,
                                             device::Home{context_.device, "reference_weights", &context_.host, device::Keep::kOriginal});
  const std::string& other = config_.model.ref_model_load_path;
  reference_->load(other.empty() ? files_.start_dir() : other);
  if (context_.placement.kind == planner::PlacementKind::kFullyColocated || config_.memory.offload_reference)
    may_leave(planner::Resident::kReference, *reference_->memory());
}

void RlRun::load_reward_model() {
  enter(schedule_.stage(planner::StageKind::kReward));
  staged_reward_ = std::make_unique<StagedReward>(config_.reward, context_.train_place(), context_.device, context_.host);
  may_leave(planner::Resident::kRewardModel, staged_reward_->memory());
}

void RlRun::may_leave(planner::Resident what, device::Swappable& memory) {
  residency_.add({what, [&] { return memory.is_away(); }, [&] { return memory.leave(); }, [&] { return memory.come_back(); }});
}

void RlRun::enter(const planner::Stage& stage) {
  const double begin = now_s();
  const int64_t copied = residency_.enter(stage);
  if (residency_.empty()) return;
  context_.recorder.add("time/offload_s", now_s() - begin);
  context_.recorder.add("memory/offload_copied_bytes", static_cast<double>(copied));
}

int64_t RlRun::longest_context() const {
  const int64_t training = prompts_.longest_prompt() + config_.rollout.sampling.max_new_tokens;
  return eval_prompts_ ? std::max(training, eval_prompts_->longest_prompt() + config_.eval.sampling.max_new_tokens) : training;
}

void RlRun::restore_or_start() {
  enter(schedule_.stage(planner::StageKind::kUpdate));
  if (request_.resume) {
    const bool needs_start = actor_.lora() || (reference_ && config_.model.ref_model_load_path.empty());
    if (std::optional<RunState> found = files_.load(actor_, needs_start)) {
      state_ = std::move(*found);
      if (rollout_) restore_queue();
      if (context_.is_first()) log::info("resuming after step ", state_.step, " of ", config_.run.steps);
    } else if (context_.is_first()) {
      log::info("no checkpoint yet: starting over");
    }
  }
  if (state_.before && state_.step == 0) {  // stopped before the step whose metrics report it
    context_.recorder.set("eval/accuracy", state_.before->accuracy);
    context_.recorder.set("eval/score_mean", state_.before->mean_score);
    context_.recorder.set("eval/pass_at_k", state_.before->pass_at_k);
  }
  seconds_before_ = state_.seconds;
  if (folder_) folder_->open_sinks(context_.recorder, state_.sink_bytes, state_.step);
  enter(schedule_.stage(planner::StageKind::kSwitch));
  move_weights();
}

// The bodies of finished groups go to where they would have been generated under this layout.
void RlRun::restore_queue() {
  std::vector<data::GroupId> again;
  if (!state_.queue.empty())
    again = queue_.restore(std::exchange(state_.queue, {}), [&](const data::Fields& rows) {
      std::vector<data::Group> groups = data::groups_of(rows);
      for (data::Group& group : groups) bodies_.restore(group);
      return data::fields_of(groups);
    });
  rollout_->restore(state_.next_group, std::move(again));
}

RunSummary RlRun::run() {
  started_s_ = now_s();
  restore_or_start();
  if (context_.is_first()) {
    log::info(context_.products_text());
    log::info(planner::to_text(schedule_), ", ", config_.parallel.placement, ": train ", model::to_string(context_.train_layout),
              to_text(context_.placement.train), ", rollout ", model::to_string(context_.rollout_layout),
                  to_text(context_.placement.rollout),
              actor_.aliased() ? ", one copy of the weights" : "");
    const MemoryOptions& m = config_.memory;
    const auto is_idle = [](const char* option, const char* why) { log::info("memory.", option, " has nothing to do: ", why); };
    if (m.offload_train_param && actor_.aliased()) is_idle("offload_train_param", "rollout generates with the weights that train");
    if (m.offload_train_optimizer && config_.train.swap_optimizer)
      is_idle("offload_train_optimizer", "with train.swap_optimizer it is on the host already");
    if (m.offload_reference && !reference_) is_idle("offload_reference", "this run has no weights of a reference model");
  }
  if (eval_prompts_ && config_.eval.before && !state_.before) {
    state_.before = evaluate(0);
    if (!state_.before) {
      save();
      throw Interrupted("stopped after step 0, in the evaluation before training; --resume continues");
    }
    if (context_.is_first()) log::info("before: accuracy ", std::round(1000 * state_.before->accuracy) / 10, " %");
  }
  if (!state_.unconcluded.empty()) {
    for (const auto& [name, value] : state_.unconcluded) context_.recorder.set(name, value);
    conclude_step();
  }
  while (state_.step < config_.run.steps) {
    StepData step;
    step.begin_s = now_s();
    for (const planner::Stage& stage : schedule_.stages) {
      const double begin = now_s();
      enter(stage);
      (void)context_.device.take_stage_peak_bytes();  // what left does not count
      device::name_thread(stage.name);
      skew_.starts(stage.name, now_s());
      const bool done = run_stage(stage, step);
      context_.recorder.set("memory/" + stage.name + "_peak_bytes", static_cast<double>(context_.device.take_stage_peak_bytes()));
      context_.recorder.span(stage.name, stage.name, begin, now_s());
      context_.recorder.add("time/" + stage.name + "_s", now_s() - begin);
      if (done && stage.kind == planner::StageKind::kUpdate) meet(step);
      if (done) continue;
      if (state_.step != files_.last_saved_step()) save();
      throw Interrupted(join_text("stopped after step ", state_.step, "; --resume continues"));
    }
    device::name_thread("record");
    finish_step(step);
  }
  if (files_.last_saved_step() != state_.step) save();
  RunSummary summary{state_.before, {}, state_.step, seconds_before_ + now_s() - started_s_, state_.tokens};
  if (eval_prompts_ && config_.eval.after) {
    summary.after = last_eval_ ? last_eval_ : evaluate(state_.step);
    if (!summary.after) throw Interrupted(join_text("stopped after step ", state_.step, ", in the last evaluation; --resume continues"));
  }
  return summary;
}

void RlRun::save() {
  const double begin = now_s();
  if (folder_) {
    folder_->samples().flush();
    state_.sink_bytes = context_.recorder.flush();
  }
  state_.seconds = seconds_before_ + now_s() - started_s_;
  if (rollout_) {
    state_.next_group = rollout_->next_group();
    bodies_.gather(queue_.finished());
    if (context_.is_first())
      state_.queue = queue_.state([&](const data::Fields& heads) { return data::fields_of(bodies_.complete(data::groups_of(heads))); });
  }
  files_.save(state_, actor_);
  state_.queue.clear();
  context_.recorder.add("time/checkpoint_s", now_s() - begin);
}

}  // namespace tandem::runtime
