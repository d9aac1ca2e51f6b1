// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/rollout_role.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/runtime/exchange.h"
#include "tandem/runtime/session/response_text.h"

namespace tandem::runtime {
namespace {

// How long a round waits for a grade: a moment while there is generation to go on with, longer when there is not.
constexpr double kMomentS = 0.01, kIdleMomentS = 1.0;
constexpr int64_t kSyncRounds = 8;  // a batch needs every group then, so ranks meet less often

}  // namespace

RolloutRole::RolloutRole(RankContext& context, const RolloutParts& parts)
    : context_(context),
      parts_(parts),
      stop_ids_(stop_ids(parts.config.eos_ids, &parts.tokenizer)),
      stop_matchers_(stop_matchers(&parts.tokenizer, context.config.rollout.stop)) {
  if (parts.reward) scorer_.emplace(*parts.reward, context.config.reward.workers);
  if (!parts.decoder) return;
  engine_.emplace(context.config.rollout.engine,
                  rollout::EngineSetup{*parts.decoder, context.device, context.recorder,
                                       std::min(parts.tokenizer.vocab_size(), parts.config.vocab_size), parts.max_context_tokens});
  groups_.emplace(*engine_);
}

void RolloutRole::start(data::GroupId id) {
  parts_.queue.start(id, parts_.queue.version());
  // Groups go round the data-parallel replicas; every rank's queue knows of all.
  if (!engine_ || value(id) % context_.rollout_layout.dp != context_.rollout_layout.dp_rank(context_.rollout_rank())) return;
  const int64_t group_size = context_.config.schedule.queue.group_size;
  rollout::GroupRequest request;
  request.group.id = id;
  request.group.prompt = parts_.prompts.at_position(value(id));
  request.num_samples = group_size;
  request.first_sample = value(data::sample_id(id, group_size, 0));
  request.sampling = context_.config.rollout.sampling;
  request.seed = static_cast<uint64_t>(context_.config.run.seed);
  request.stop_ids = stop_ids_;
  request.make_stop_matcher = stop_matchers_;
  request.record_routes = context_.config.schedule.routing_replay;
  groups_->admit(std::move(request));
}

void RolloutRole::start_groups() {
  for (int64_t n = parts_.queue.num_may_start(); n > 0; --n) start_next();
}

void RolloutRole::start_next() {
  if (again_.empty()) return start(data::GroupId{next_group_++});
  start(again_.front());
  again_.erase(again_.begin());
}

// Some token steps; the scorer's threads grade what they finish while the engine goes on.
void RolloutRole::generate() {
  generating_ = false;
  if (!engine_) return;
  const bool alone = context_.world.size() == 1;  // else all ranks stop between rounds
  const int64_t steps = context_.config.parallel.exchange_steps * (context_.config.staleness() == 0 ? kSyncRounds : 1);
  for (int64_t i = 0; i < steps; ++i) {
    generating_ = engine_->must_step();
    if (!generating_) break;
    if (alone && context_.stop_requested && context_.stop_requested()) break;
    engine_->step();
    for (data::Group& group : groups_->finished()) {
      fill_text(group, parts_.tokenizer, context_.config.rollout.stop);
      parts_.bodies.keep(group);
      if (scorer_) scorer_->submit(std::move(group));
      else unscored_.push_back(std::move(group));
    }
  }
}

std::vector<data::Group> RolloutRole::graded() {
  if (!scorer_) return std::exchange(unscored_, {});
  const double begin = now_s(), timeout_s = context_.config.schedule.queue.take_timeout_s;
  const Deadline moment = Deadline::after_s(generating_ ? kMomentS : kIdleMomentS);
  std::vector<data::Group> groups;
  while (auto group = scorer_->collect(moment)) groups.push_back(std::move(*group));
  context_.recorder.add("time/reward_s", now_s() - begin);
  const bool waits = !running() && scorer_->num_pending() > 0 && groups.empty();
  if (!waits) waiting_since_s_ = 0;
  else if (waiting_since_s_ == 0) waiting_since_s_ = begin;
  else if (now_s() - waiting_since_s_ > timeout_s)
    throw PeerError(join_text("reward rule ", parts_.reward->name(), ": ", scorer_->num_pending(),
                              " groups wait for their grades for over ",
                              timeout_s, " s (schedule.take_timeout_s)"));
  return groups;
}

void RolloutRole::run_round(comm::Group& peers) {
  generate();
  std::vector<data::Group> mine = graded();
  if (&peers != &context_.world && context_.speaks_for_rollout()) ahead_.insert(ahead_.end(), mine.begin(), mine.end());
  const double begin = now_s();
  for (const data::Group& head : parts_.bodies.exchange(peers, std::move(mine), context_.speaks_for_rollout())) parts_.queue.put(head);
  context_.recorder.add("time/exchange_s", now_s() - begin);
}

bool RolloutRole::may_go_on(comm::Group& peers) {
  return any_of(peers, running() || (scorer_ && scorer_->num_pending() > 0) || parts_.queue.num_may_start() > 0);
}

bool RolloutRole::run_until_batch() {
  // Restored groups are outstanding from the start: finished ones may form a batch at once, and a checkpoint after it must
  // know the others, too.
  if (!again_.empty()) start_groups();
  while (!parts_.queue.batch_ready()) {
    if (context_.stop_agreed()) return false;
    start_groups();
    // Under `wait` a full batch may be held back for a straggler: that is the price of the policy, and it is reported.
    const bool held_back = !parts_.queue.must_wait_for().empty();
    const double begin = now_s();
    run_round(context_.world);
    TANDEM_CHECK(may_go_on(context_.world) || parts_.queue.batch_ready(), "no batch is ready, no group runs and none may start");
    if (held_back) context_.recorder.add("time/wait_s", now_s() - begin);
  }
  return true;
}

void RolloutRole::run_ahead() {
  comm::Group& peers = context_.side();
  const double begin = now_s();
  while (parts_.queue.num_finished() < parts_.queue.groups_per_step() && may_go_on(peers)) {
    if (any_of(peers, context_.stop_requested && context_.stop_requested())) break;
    num_started_ahead_ += parts_.queue.num_may_start();
    start_groups();
    run_round(peers);
  }
  ahead_s_ += now_s() - begin;
}

double RolloutRole::take_ahead_s() {
  constexpr double kTick_s = 1e-6;
  return static_cast<double>(max_over(context_.world, static_cast<int64_t>(std::exchange(ahead_s_, 0) / kTick_s))) * kTick_s;
}

void RolloutRole::tell_ahead() {
  const int64_t started = max_over(context_.world, std::exchange(num_started_ahead_, 0));
  for (int64_t n = started; n > 0 && !engine_; --n) start_next();
  for (const data::Group& group : parts_.bodies.exchange(context_.world, std::exchange(ahead_, {}), context_.speaks_for_rollout())) {
    ++num_ahead_;
    if (!engine_) parts_.queue.put(group);
  }
}

std::vector<data::GroupId> RolloutRole::without_token() {
  const std::vector<data::GroupId> mine = context_.speaks_for_rollout() ? groups_->without_token() : std::vector<data::GroupId>();
  return exchange_ids(context_.world, mine);
}

double RolloutRole::take_num_tokens() {
  const int64_t all = engine_ ? engine_->num_drawn() : 0, drawn = all - std::exchange(num_tokens_told_, all);
  return sum_over(context_.world, context_.speaks_for_rollout() ? static_cast<double>(drawn) : 0.0);
}

void RolloutRole::switch_weights(const std::function<void()>& move, const rollout::NewWeights& weights) {
  rollout::switch_weights(engine_ ? &*engine_ : nullptr, context_.world, move, weights);
}

void RolloutRole::regain_memory(const rollout::NewWeights& weights) { engine_->switch_weights(*weights.parameters, weights.version); }

void RolloutRole::release_memory() { engine_->release_memory(); }

void RolloutRole::cancel(const std::vector<data::GroupId>& groups) {
  if (!engine_) return;
  for (data::GroupId id : groups) groups_->cancel(id);
}

void RolloutRole::restore(int64_t next_group, std::vector<data::GroupId> again) {
  next_group_ = next_group;
  again_ = std::move(again);
}

}  // namespace tandem::runtime
