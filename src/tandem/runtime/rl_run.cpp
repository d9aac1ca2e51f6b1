// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/rl_run.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "tandem/algo/advantage.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/device/process.h"
#include "tandem/model/flops.h"
#include "tandem/runtime/exchange.h"
#include "tandem/runtime/session/reward_model.h"
#include "tandem/train/balance.h"

namespace tandem::runtime {
namespace {

// Under adapters the start is still there, unless the reference is another model.
bool start_is_reference(const RunConfig& config) { return config.model.lora.rank > 0 && config.model.ref_model_load_path.empty(); }

// A fully colocated reward model scores when generation is done.
bool scores_in_stage(const RunConfig& config) { return config.parallel.placement == "fully_colocated" && is_reward_model(config.reward); }

// Stands for what a stage does.
std::unique_ptr<reward::Rule> later_rule() {
  const auto none = [](const reward::Answer&) -> reward::Score { throw InternalError("scored before the stage of the reward model"); };
  return std::make_unique<reward::FunctionRule>("model", none, reward::FunctionRule::Needs{false, false});
}

std::unique_ptr<reward::Rule> reward_of(const RunConfig& config, device::Arena& arena) {
  if (scores_in_stage(config)) return later_rule();
  if (config.parallel.placement != "fully_colocated") return reward::make_reward(config.reward, reward_models(arena, kBesideGeneration));
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

planner::Schedule schedule_of(const RunConfig& config, const algo::Recipe& recipe) {
  const planner::ScheduleNeeds needs{recipe.needs_reference(), config.schedule.old_logprobs == "recompute", scores_in_stage(config),
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
      reward_(reward_of(config_, context.device)),
      prompts_(data_for(*reward_, config_.data), data::Split::kTrain, PromptText{tokenizer_, model_dir}),
      recipe_(algo::recipe_of(config_.algo)),
      schedule_(schedule_of(config_, recipe_)),
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
  if (recipe_.needs_reference() && !start_is_reference(config_) && context.trains()) load_reference();
  if (scores_in_stage(config_) && context.trains()) load_reward_model();
  if (!request.replay.empty()) {
    replay_ = std::make_unique<data::SampleReader>(request.replay + "/samples.sqlite");
    if (const auto has = std::ssize(replay_->steps()); has < config_.run.steps)
      throw UserError("--replay " + request.replay, join_text("has the samples of ", has, " steps, run.steps is ", config_.run.steps),
                      join_text("--steps ", has, " at most"));
  } else {
    const model::Decoder* decoder = context.rolls_out() ? &actor_.rollout_model().decoder() : nullptr;
    rollout_ = std::make_unique<RolloutRole>(
        context, RolloutParts{actor_.config(), decoder, tokenizer_, prompts_, scores_in_stage(config_) ? nullptr : reward_.get(), queue_, bodies_,
                              std::min(positions, longest_context())});
    if (decoder && config_.memory.offloads())
      residency_.add({planner::Resident::kKvCache, [this] { return !rollout_->has_memory(); },
                      [this] { return rollout_->release_memory(), int64_t{0}; }, nullptr});
  }
}

// When its turn comes it finds the room that it will have in each step.
void RlRun::load_reference() {
  enter(schedule_.stage(planner::StageKind::kReference));
  reference_ = std::make_unique<ModelOnRank>(actor_.config(), context_.train_place(), context_.gemm,
                                             WeightsHome{context_.device, "reference_weights", &context_.host, device::Keep::kOriginal});
  const std::string& other = config_.model.ref_model_load_path;
  reference_->load(other.empty() ? files_.start_dir() : other);
  if (context_.placement.kind == planner::PlacementKind::kFullyColocated) may_leave(planner::Resident::kReference, *reference_->memory());
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
    log::info(context_.gemm.description());
    log::info(planner::to_text(schedule_), ", train ", model::to_string(context_.train_layout), ", rollout ",
              model::to_string(context_.rollout_layout), actor_.aliased() ? ", one copy of the weights" : "");
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
      device::name_thread(stage.name);
      skew_.starts(stage.name, begin);
      const bool done = run_stage(stage, step);
      context_.recorder.set("memory/" + stage.name + "_peak_bytes", static_cast<double>(context_.device.take_stage_peak_bytes()));
      context_.recorder.span(stage.name, stage.name, begin, now_s());
      context_.recorder.add("time/" + stage.name + "_s", now_s() - begin);
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

bool RlRun::run_stage(const planner::Stage& stage, StepData& step) {
  switch (stage.kind) {
    case planner::StageKind::kRollout:
      if (is_replay() ? context_.stop_agreed() : !rollout_->run_until_batch()) return false;
      take_batch(step);
      break;
    case planner::StageKind::kReward: reward_scores(step); break;
    case planner::StageKind::kReference: reference_logprobs(step); break;
    case planner::StageKind::kOldLogprob: old_logprobs(step); break;
    case planner::StageKind::kAdvantage: advantages(step); break;
    case planner::StageKind::kUpdate: update(step); break;
    case planner::StageKind::kSwitch: switch_weights(step); break;
  }
  return true;
}

void RlRun::take_batch(StepData& step) {
  const data::StepId id{state_.step + 1};
  if (is_replay()) {
    step.batch = replay_->batch(id);
    step.batch.version = data::PolicyVersion{state_.version};
    bodies_.keep_everywhere(step.batch.groups);
  } else {
    std::optional<data::Batch> batch = queue_.take(data::Stage::kTrain, data::ReplicaId{0}, id);
    TANDEM_CHECK(batch, "the queue is closed");
    step.batch = std::move(*batch);
  }
  make_rows(step);
}

std::span<const int16_t> RlRun::routes_of(const data::Sample& sample, const data::Group& group) const {
  const std::span<const int16_t> routes = bodies_.routes(sample.id);
  const int64_t tokens = bodies_.num_prompt_tokens(group) + bodies_.num_tokens(sample.id) - 1;
  const int64_t width = actor_.route_width();
  if (std::ssize(routes) != tokens * width)
    throw UserError("schedule.routing_replay",
                    join_text("sample ", value(sample.id), " has ", routes.size(), " routes for ", tokens, " tokens of ", width),
                    "samples that were rolled out with routing_replay: true");
  return routes;
}

// Which data-parallel rank trains which row is the same computation on every rank, from lengths alone. Whole groups where there are
// enough to level the ranks, so that their samples share a prompt; else single samples.
void RlRun::deal_rows(StepData& step) {
  const int dp = context_.train_layout.dp;
  const bool by_group = std::ssize(step.batch.groups) >= 4 * dp;
  std::vector<model::TokenWork> work;  // of what goes to one rank
  std::vector<size_t> unit;            // of each row
  for (const data::Group& group : step.batch.groups) {
    const int64_t prompt_tokens = bodies_.num_prompt_tokens(group);
    for (const data::Sample& sample : group.samples) {
      const bool first = !by_group || &sample == &group.samples.front();
      if (first) work.emplace_back();
      work.back().add(prompt_tokens + bodies_.num_tokens(sample.id), first ? 0 : prompt_tokens);
      unit.push_back(work.size() - 1);
    }
  }
  std::vector<double> costs;
  for (const model::TokenWork& each : work) costs.push_back(model::training_flops(actor_.config(), each));
  const std::vector<int> owner = train::balance(costs, dp);
  const int me = context_.trains() ? context_.train_layout.dp_rank(context_.train_rank()) : -1;
  for (size_t i = 0; i < unit.size(); ++i) {
    step.owners.push_back(owner[unit[i]]);
    if (step.owners.back() == me) step.mine.push_back(i);
  }
  if (!is_replay())
    context_.recorder.set("throughput/moved_bytes", static_cast<double>(bodies_.deal(step.batch.groups, step.owners, scores_in_stage(config_))));
}

// Rows in the order groups, then samples. Those of other ranks stay empty.
void RlRun::make_rows(StepData& step) {
  deal_rows(step);
  const std::string& mode = config_.schedule.old_logprobs;
  const int me = context_.trains() ? context_.train_layout.dp_rank(context_.train_rank()) : -1;
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      train::Row& row = step.rows.emplace_back();
      if (step.owners[step.rows.size() - 1] != me) continue;
      row.prompt = bodies_.prompt(group);
      row.response = bodies_.response(sample.id);
      row.behavior = bodies_.logprobs(sample.id);
      if (config_.schedule.routing_replay) row.routes = routes_of(sample, group);
      // The weights of a replay are its own: whatever the versions say, the samples come from elsewhere.
      row.fresh = bodies_.is_sampled_by(sample.id, step.batch.version) && !is_replay();
      if (mode == "rollout" || (mode == "auto" && !row.fresh)) row.old.assign(row.behavior.begin(), row.behavior.end());
    }
}

namespace {

std::vector<train::Row> rows_of(const StepData& step) {
  std::vector<train::Row> rows;
  for (size_t i : step.mine) rows.push_back(step.rows[i]);
  return rows;
}

}  // namespace

// Of all samples in order, on all ranks; this one computes `mine`, which are `answers`.
std::vector<double> RlRun::model_scores(size_t num_samples, const std::vector<size_t>& mine, std::span<const reward::Answer> answers) {
  std::vector<std::vector<float>> rows(num_samples);
  if (staged_reward_) {
    std::vector<std::vector<float>> scored = staged_reward_->score(answers, config_.train.reference_micro_batch_tokens);
    for (size_t i = 0; i < mine.size(); ++i) rows[mine[i]] = std::move(scored[i]);
  }
  exchange_rows(context_.world, rows, context_.speaks_for_train());
  std::vector<double> scores;
  for (const std::vector<float>& row : rows) scores.push_back(row.at(0));
  return scores;
}

namespace {

void set_scores(std::vector<data::Group>& groups, const std::vector<double>& scores) {
  size_t next = 0;
  for (data::Group& group : groups)
    for (data::Sample& sample : group.samples) {
      sample.score = scores[next++];
      sample.parts = {{"model", sample.score}};
      sample.scored = true;
    }
}

}  // namespace

void RlRun::reward_scores(StepData& step) {
  if (is_replay()) return;  // they have scores
  std::vector<reward::Answer> answers;
  size_t row = 0;
  for (const data::Group& head : step.batch.groups) {
    data::Group group{head.id, prompts_.at_position(value(head.id)), head.version, {}};
    for (data::Sample sample : head.samples) {
      if (!std::ranges::binary_search(step.mine, row++)) continue;
      sample.text = bodies_.text(sample.id);
      answers.push_back(reward::answer_of(group, sample));
    }
  }
  set_scores(step.batch.groups, model_scores(row, step.mine, answers));
}

void RlRun::reference_logprobs(StepData& step) {
  if (!context_.trains()) return;
  std::vector<train::Row> rows = rows_of(step);
  for (train::Row& row : rows) row.routes = {};  // the reference chooses for itself
  const ModelOnRank& model = reference_ ? *reference_ : actor_.train_model();
  auto scored = train::score(model.decoder(), reference_ ? model.parameters() : actor_.base_parameters(), rows, config_.rollout.sampling.temperature,
                             config_.train.reference_micro_batch_tokens);
  for (size_t i = 0; i < step.mine.size(); ++i) step.rows[step.mine[i]].reference = std::move(scored[i]);
}

void RlRun::old_logprobs(StepData& step) {
  if (!context_.trains()) return;
  auto scored = train::score(actor_.train_model().decoder(), actor_.train_model().parameters(), rows_of(step),
                             config_.rollout.sampling.temperature, config_.train.logprob_micro_batch_tokens);
  for (size_t i = 0; i < step.mine.size(); ++i) step.rows[step.mine[i]].old = std::move(scored[i]);
}

void RlRun::advantages(StepData& step) {
  std::vector<double> scores;
  std::vector<int64_t> groups;
  for (const data::Group& group : step.batch.groups)
    for (const data::Sample& sample : group.samples) {
      if (!std::isfinite(sample.score))
        throw UserError("reward", join_text("the score of a sample of group ", value(group.id), " is ", sample.score), "a finite number");
      scores.push_back(sample.score);
      groups.push_back(value(group.id));
    }
  step.advantages = algo::group_advantages(scores, groups, recipe_);
  for (size_t i = 0; i < step.rows.size(); ++i) step.rows[i].advantage = step.advantages[i];
}

void RlRun::update(StepData& step) {
  if (context_.trains()) {
    const double lr = train::learning_rate(config_.train, state_.step + 1, config_.run.steps);
    step.report = actor_.trainer().policy_step(rows_of(step), recipe_, config_.rollout.sampling.temperature, lr);
    context_.recorder.set("memory/activations_bytes", static_cast<double>(step.report.activation_peak_bytes));
  }
  const bool overlaps = rollout_ && context_.placement.is_split() && schedule_.staleness > 0;
  if (overlaps && context_.rolls_out()) rollout_->run_ahead();
  if (overlaps) rollout_->tell_ahead();
  step.logprobs.resize(step.rows.size());
  for (size_t i = 0; i < step.mine.size(); ++i) step.logprobs[step.mine[i]] = std::move(step.report.logprobs[i]);
  step.logprobs = bodies_.collect(step.batch.groups, step.owners, std::move(step.logprobs));
  ++state_.step;
  ++state_.version;
}

// The engine has no version until every rank has the new weights.
void RlRun::move_weights() {
  const auto move = [this] { actor_.switch_to_rollout(); };
  if (!rollout_) return move();
  rollout_->switch_weights(move, rollout_weights());
}

rollout::NewWeights RlRun::rollout_weights() const {
  return {context_.rolls_out() ? &actor_.rollout_model().parameters() : nullptr, data::PolicyVersion{state_.version}};
}

void RlRun::switch_weights(StepData& step) {
  if (is_replay()) return move_weights();
  const std::vector<data::GroupId> without_token = rollout_->without_token();
  const std::vector<data::GroupId> evicted = queue_.commit(step.batch.step, data::PolicyVersion{state_.version}, without_token);
  rollout_->cancel(evicted);
  bodies_.drop(evicted);
  if (folder_) folder_->samples().append_dropped(step.batch.step, evicted);
  move_weights();
}

// This rank's part of the held-out problems, answered and scored. Errors: Interrupted.
std::vector<data::Group> RlRun::answers_of_rank() {
  const int dp = context_.rollout_layout.dp, me = context_.rollout_layout.dp_rank(context_.rollout_rank());
  std::vector<data::Prompt> prompts;
  for (int64_t row = me; row < eval_prompts_->size(); row += dp) prompts.push_back(eval_prompts_->at_row(row));
  const ModelOnRank& model = actor_.rollout_model();
  rollout::Engine* idle = rollout_ ? rollout_->idle_engine() : nullptr;
  // Unfinished sequences have the one cache that there is room for.
  const bool makes_room = rollout_ && !idle && config_.memory.device_mib > 0;
  if (makes_room) rollout_->release_memory();
  // A seed of its own, so that evaluation never draws the numbers of training.
  const AnswerRequest request{model.decoder(), model.parameters(), context_.device, &tokenizer_, config_.rollout.engine, config_.eval.sampling,
                              config_.rollout.stop, config_.eval.n, static_cast<uint64_t>(config_.run.seed) ^ 0x65766171ull, me, dp,
                              context_.stop_between_tokens(), idle};
  std::vector<data::Group> answers;
  if (scores_in_stage(config_)) {
    answer_prompts(request, std::move(prompts), [&](data::Group&& group) { answers.push_back(std::move(group)); });
  } else {
    reward::Scorer scorer(*reward_, config_.reward.workers);
    answer_prompts(request, std::move(prompts), [&](data::Group&& group) { scorer.submit(std::move(group)); });
    answers = scorer.collect_all(config_.schedule.queue.take_timeout_s);
  }
  if (makes_room) rollout_->regain_memory(rollout_weights());
  return answers;
}

// The reward model comes for them, and then what generates again.
void RlRun::score_answers(std::vector<data::Group>& answers) {
  if (!scores_in_stage(config_)) return;
  const int dp = context_.train_layout.dp, me = context_.trains() ? context_.train_layout.dp_rank(context_.train_rank()) : -1;
  std::vector<size_t> mine;
  std::vector<reward::Answer> asked;
  size_t row = 0;
  for (const data::Group& group : answers)
    for (const data::Sample& sample : group.samples)
      if (const size_t i = row++; static_cast<int>(i) % dp == me) {
        mine.push_back(i);
        asked.push_back(reward::answer_of(group, sample));
      }
  enter(schedule_.stage(planner::StageKind::kReward));
  set_scores(answers, model_scores(row, mine, asked));
  enter(schedule_.stage(planner::StageKind::kSwitch));
  move_weights();
}

std::optional<EvalSummary> RlRun::evaluate(int64_t step) {
  const double begin = now_s();
  std::vector<data::Group> mine;
  bool stopped = false;
  try {
    if (context_.rolls_out()) mine = answers_of_rank();
  } catch (const Interrupted&) {
    stopped = true;
  }
  if (context_.any(stopped)) return std::nullopt;
  std::vector<data::Group> all = exchange_groups(context_.world, std::move(mine), context_.speaks_for_rollout());
  score_answers(all);
  EvalSummary summary = summarize(all, config_.eval.right_at);
  context_.recorder.set("eval/accuracy", summary.accuracy);
  context_.recorder.set("eval/score_mean", summary.mean_score);
  context_.recorder.set("eval/pass_at_k", summary.pass_at_k);
  context_.recorder.add("time/eval_s", now_s() - begin);
  if (folder_) {
    std::vector<data::EvalAnswer> answers;
    for (const data::Group& group : all)
      for (const data::Sample& s : group.samples) answers.push_back({group.prompt.row, group.prompt.text, group.prompt.answer, s.text, s.score});
    folder_->samples().append_evals(data::StepId{step}, answers);
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
