// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/rollout_role.h"

#include <ATen/ops/empty.h>

#include <thread>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/runtime/sample/exchange.h"
#include "tandem/serve/response_text.h"

namespace tandem::runtime {
namespace {

constexpr int64_t kSyncRounds = 8;  // a batch needs every group then, so ranks meet less often
constexpr double kStreamMomentS = 0.01;  // for which a round waits for a stream to end a group
constexpr int kTrainedTag = 20;

queue::Takes takes(const RolloutParts& parts) {
  if (config::scores_in_stage(parts.config)) return queue::Takes::kUnscored;
  return parts.config.algo.filter_groups ? queue::Takes::kScoredWithSpread : queue::Takes::kScored;
}

bool filters_too_many(const queue::SampleQueue& queue, const algo::Options& o) {
  return queue.num_filtered() >= o.max_filter_rounds * queue.groups_per_step();
}

// Errors: StepFailed.
void check_filtered(const queue::SampleQueue& queue, const algo::Options& o) {
  if (!filters_too_many(queue, o)) return;
  const UserError none("algo.max_filter_rounds",
                       join_text("for one batch of ", queue.groups_per_step(), " groups ", queue.num_filtered(),
                                 " were replaced, for their scores were all alike"),
                       "prompts that are neither too easy nor too hard, more rounds, or filter_groups: false");
  throw StepFailed(exit_code_of(none), none.what());
}

std::exception_ptr fault_of(const std::optional<Grades>& grades) { return grades ? grades->fault() : nullptr; }

// Whether any rank was asked to stop. Errors: StepFailed where the grading on one has a `fault`. Collective.
bool stop_agreed(const RolloutParts& parts, const std::exception_ptr& fault) {
  enum Asks : int64_t { kNothing, kTell, kStop, kEnd };
  monitor::Notices& notices = *parts.config.reward.notices;
  const std::vector<monitor::Notice> waiting = notices.take();
  const Asks mine = fault ? kEnd : parts.stop && parts.stop() ? kStop : waiting.empty() ? kNothing : kTell;
  const int64_t asked = comm::max_over(parts.ranks.world, static_cast<int64_t>(mine));
  if (asked != kNothing) tell_notices(parts.ranks.world, notices, waiting);
  if (asked == kEnd) fail_alike(parts.ranks.world, fault);
  return asked == kStop;
}

// What a batch has by now: of all ranks the groups in the queue, of this one those that wait for their scores, and the tokens.
void tell(const RolloutParts& parts, const queue::SampleQueue& queue, int64_t num_unscored, int64_t tokens) {
  const int64_t done = std::min<int64_t>(queue.num_finished() + num_unscored, queue.groups_per_step());
  if (parts.tell) parts.tell(done * parts.config.schedule.queue.group_size, tokens);
}

}  // namespace

RolloutRole::RolloutRole(const RolloutParts& parts)
    : parts_(parts),
      queue_(parts.config.schedule.queue, takes(parts), parts.config.reward.shaping()),
      stop_ids_(serve::stop_ids(parts.model.eos_ids, &parts.tokenizer)),
      stop_matchers_(serve::stop_matchers(&parts.tokenizer, parts.config.rollout.stop)) {
  if (parts.reward)
    grades_.emplace(*parts.reward, reward::grading_of(parts.config.reward), parts.config.schedule.queue.take_timeout_s);
  if (!parts.decoder) return;
  engine_.emplace(parts.config.rollout.engine,
                  rollout::EngineSetup{*parts.decoder, parts.memory.device, parts.recorder,
                                       std::min(parts.tokenizer.vocab_size(), parts.model.vocab_size), parts.max_context_tokens});
  if (!parts.config.is_free()) {
    groups_.emplace(*engine_);
    return;
  }
  std::vector<comm::Group*> peers;
  const model::RankPlace place = parts.ranks.rollout_place();
  for (comm::Group* group : {place.tp, place.pp, parts.ranks.rollout_layout.shares_experts() ? place.ep : nullptr})
    if (group) peers.push_back(group);
  stream_.emplace(*engine_, std::move(peers));
}

void RolloutRole::start(data::GroupId id) {
  queue_.start(id, queue_.version());
  // Groups go round the data-parallel replicas; every rank's queue knows of all.
  if (!engine_ || value(id) % parts_.ranks.rollout_layout.dp != parts_.ranks.rollout_layout.dp_rank(parts_.ranks.rollout_rank())) return;
  const int64_t group_size = parts_.config.schedule.queue.group_size;
  rollout::GroupRequest request;
  request.group.id = id;
  request.group.prompt = parts_.prompts.at_position(value(id));
  request.num_samples = group_size;
  request.first_sample = value(data::sample_id(id, group_size, 0));
  request.sampling = parts_.config.rollout.sampling;
  if (parts_.most_tokens)
    for (int64_t i = 0; i < group_size; ++i) request.max_new_tokens.push_back(parts_.most_tokens(data::sample_id(id, group_size, i)));
  request.seed = static_cast<uint64_t>(parts_.config.run.seed);
  request.stop_ids = stop_ids_;
  request.make_stop_matcher = stop_matchers_;
  request.record_routes = parts_.config.schedule.routing_replay;
  request.with_greedy = parts_.config.algo.compares_with_greedy();
  stream_ ? stream_->admit(std::move(request)) : groups_->admit(std::move(request));
}

void RolloutRole::start_groups() {
  for (int64_t n = queue_.num_may_start(); n > 0; --n) start_next();
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
  const bool alone = parts_.ranks.world.size() == 1;  // else all ranks stop between rounds
  const int64_t steps = parts_.config.parallel.exchange_steps * (parts_.config.staleness() == 0 ? kSyncRounds : 1);
  for (int64_t i = 0; i < steps; ++i) {
    generating_ = engine_->must_step();
    if (!generating_) break;
    if (alone && parts_.stop && parts_.stop()) break;
    engine_->step();
    tell(parts_, queue_, grades_ ? grades_->num_pending() : std::ssize(unscored_), engine_->counts().drawn - num_tokens_told_);
    for (data::Group& group : groups_->finished()) keep(std::move(group));
  }
}

void RolloutRole::keep(data::Group group) {
  serve::fill_text(group, parts_.tokenizer, parts_.config.rollout.stop);
  parts_.bodies.keep(group);
  if (grades_) grades_->submit(std::move(group));
  else if (parts_.ranks.speaks_for_rollout()) unscored_.push_back(std::move(group));
}

// What the stream has ended by now, or ends in a moment.
void RolloutRole::await_stream() {
  const Deadline moment = Deadline::after_s(kStreamMomentS);
  if (!stream_->wait_finished(moment)) std::this_thread::sleep_until(moment.time());  // nothing runs: not to ask the peers all the time
  for (data::Group& group : stream_->take_finished()) keep(std::move(group));
  generating_ = stream_->busy();
}

rollout::EngineCounts RolloutRole::counts() const {
  return stream_ ? stream_->state().counts : engine_ ? engine_->counts() : rollout::EngineCounts{};
}

void RolloutRole::run_round(comm::Group& peers) {
  stream_ ? await_stream() : generate();
  std::vector<data::Group> mine = grades_ ? grades_->collect(generating_, !running()) : std::exchange(unscored_, {});
  if (&peers != &parts_.ranks.world && parts_.ranks.speaks_for_rollout()) ahead_.insert(ahead_.end(), mine.begin(), mine.end());
  const double begin = now_s();
  for (const data::Group& head : parts_.bodies.exchange(peers, std::move(mine), parts_.ranks.speaks_for_rollout()))
    if (!queue_.put(head)) filtered_.push_back(head);
  tell(parts_, queue_, grades_ ? grades_->num_pending() : 0, counts().drawn - num_tokens_told_);
  if (&peers == &parts_.ranks.world) parts_.bodies.drop(std::exchange(filtered_, {}));  // else the others must hear of them first
  parts_.recorder.add("time/exchange_s", now_s() - begin);
}

bool RolloutRole::may_go_on(comm::Group& peers) const {
  return comm::any_of(peers, running() || (grades_ && grades_->pending()) || queue_.num_may_start() > 0);
}

std::optional<data::Batch> RolloutRole::next_batch(data::StepId step, data::PolicyVersion) {
  // Restored groups are outstanding from the start: finished ones may form a batch at once, and a checkpoint after it must
  // know the others, too.
  if (!again_.empty()) start_groups();
  while (!queue_.batch_ready()) {
    if (stop_agreed(parts_, fault_of(grades_))) return std::nullopt;
    check_filtered(queue_, parts_.config.algo);
    start_groups();
    // Under `wait` a full batch may be held back for a straggler: that is the price of the policy, and it is reported.
    const bool held_back = !queue_.must_wait_for().empty();
    const double begin = now_s();
    run_round(parts_.ranks.world);
    TANDEM_CHECK(may_go_on(parts_.ranks.world) || queue_.batch_ready(), "no batch is ready, no group runs and none may start");
    if (held_back) parts_.recorder.add("time/wait_s", now_s() - begin);
  }
  return queue_.take(step);
}

bool RolloutRole::accept(const data::Batch& scored) {
  const std::vector<data::GroupId> alike = queue_.filter(scored.step, scored.groups);
  if (alike.empty()) return true;
  parts_.bodies.take_back(scored.groups);
  parts_.bodies.drop(bare_heads(alike, parts_.config.schedule.queue.group_size));
  check_filtered(queue_, parts_.config.algo);
  return false;
}

void RolloutRole::give_back(const data::Batch& batch) {
  if (queue_.give_back()) parts_.bodies.take_back(batch.groups);
}

void RolloutRole::run_ahead() {
  comm::Group& peers = parts_.ranks.side();
  const double begin = now_s();
  const auto is_enough = [&] {
    if (stream_) return await_trained(peers);
    return queue_.num_finished() >= queue_.groups_per_step() || !may_go_on(peers);
  };
  while (!is_enough() && !filters_too_many(queue_, parts_.config.algo)) {
    if (comm::any_of(peers, fault_of(grades_) || (parts_.stop && parts_.stop()))) break;
    num_started_ahead_ += queue_.num_may_start();
    start_groups();
    run_round(peers);
  }
  if (stream_ && peers.rank() == 0) {
    at::Tensor nothing = at::empty({0}, at::kByte);
    parts_.ranks.world.receive(nothing, 0, kTrainedTag);
  }
  ahead_s_ += now_s() - begin;
}

// Whether the ranks that train have come to the meeting.
bool RolloutRole::await_trained(comm::Group& peers) {
  return comm::any_of(peers, peers.rank() == 0 && parts_.ranks.world.arrived(0, kTrainedTag));
}

void RolloutRole::meet() {
  if (!parts_.runs_ahead) return;
  if (parts_.config.is_free() && parts_.ranks.is_first())
    parts_.ranks.world.send(at::empty({0}, at::kByte), parts_.ranks.placement.rollout.first, kTrainedTag);
  const int64_t started = comm::max_over(parts_.ranks.world, std::exchange(num_started_ahead_, 0));
  const policy::Ranks& ranks = parts_.ranks;
  std::vector<data::Group> heads = parts_.bodies.exchange(ranks.world, std::exchange(ahead_, {}), ranks.speaks_for_rollout());
  num_ahead_ += std::ssize(heads);
  if (!engine_) follow(started, std::move(heads));
  parts_.bodies.drop(std::exchange(filtered_, {}));
}

// What the ranks that generate did meanwhile. A group may have started only once another was filtered.
void RolloutRole::follow(int64_t num_started, std::vector<data::Group> heads) {
  for (bool moved = true; moved;) {
    moved = false;
    for (; num_started > 0 && queue_.num_may_start() > 0; --num_started, moved = true) start_next();
    moved |= std::erase_if(heads, [&](const data::Group& head) {
      if (!queue_.knows(head.id)) return false;
      if (!queue_.put(head)) filtered_.push_back(head);
      return true;
    }) > 0;
  }
  TANDEM_CHECK(num_started == 0 && heads.empty(), num_started, " groups cannot start, ", heads.size(), " cannot be put");
}

// Groups that wait for their first token anywhere start at the new version.
std::vector<data::GroupId> RolloutRole::commit(data::StepId step, data::PolicyVersion after) {
  std::vector<queue::Waiting> mine;
  if (parts_.ranks.speaks_for_rollout()) mine = waiting(after);
  const std::vector<data::GroupId> evicted = queue_.commit(step, after, comm::values_of_all(parts_.ranks.world, mine));
  for (data::GroupId id : evicted) {
    if (groups_) groups_->cancel(id);
    if (stream_) stream_->cancel(id);
  }
  parts_.bodies.drop(bare_heads(evicted, parts_.config.schedule.queue.group_size));
  return evicted;
}

// A stream may draw their first token before it has the new weights.
std::vector<queue::Waiting> RolloutRole::waiting(data::PolicyVersion after) const {
  std::vector<queue::Waiting> all;
  if (!stream_) {
    for (const data::GroupId id : groups_->without_token()) all.push_back({id, after});
    return all;
  }
  const rollout::StreamState state = stream_->state();
  for (const data::GroupId id : state.without_token) all.push_back({id, *state.version});
  return all;
}

// A stream goes on with the weights it has until all of the new ones are here.
void RolloutRole::switch_weights(const std::function<void()>& send, const rollout::NewWeights& weights) {
  if (!parts_.config.is_free()) return rollout::switch_weights(engine(), parts_.ranks.world, send, weights);
  if (stream_) stream_->wait_obeyed();
  send();
  parts_.ranks.world.barrier();
  if (stream_) stream_->switch_weights(*weights.parameters, weights.version);
}

void RolloutRole::pause() {
  if (stream_ && !std::exchange(is_paused_, true)) stream_->pause();
}

void RolloutRole::resume() {
  if (stream_ && std::exchange(is_paused_, false)) stream_->resume();
}

std::optional<double> RolloutRole::take_idle_s() {
  if (!stream_) return std::nullopt;
  const double all = stream_->state().idle_s;
  return all - std::exchange(idle_told_s_, all);
}

void RolloutRole::record(monitor::Recorder& recorder) {
  comm::Group& world = parts_.ranks.world;
  double rollout_s = std::max(1e-9, recorder.current("time/rollout_s"));
  const double reward_s = comm::max_over(world, grades_ ? grades_->take_seconds() : 0);
  if (!config::scores_in_stage(parts_.config)) recorder.set("time/reward_s", reward_s);
  if (parts_.runs_ahead) {
    const double ahead_s = comm::max_over(world, std::exchange(ahead_s_, 0));
    rollout_s += ahead_s;
    recorder.set("time/ahead_s", ahead_s);
    recorder.set("data/groups_ahead", static_cast<double>(std::exchange(num_ahead_, 0)));
  }
  const int64_t all = counts().drawn, drawn = all - std::exchange(num_tokens_told_, all);
  const double tokens = comm::sum_over(world, parts_.ranks.speaks_for_rollout() ? static_cast<double>(drawn) : 0.0);
  recorder.set("throughput/rollout_tokens_per_s", tokens / rollout_s);
  recorder.set("queue/depth", static_cast<double>(queue_.num_finished()));
  recorder.set("queue/outstanding", static_cast<double>(queue_.num_outstanding()));
  recorder.set("staleness/dropped", static_cast<double>(queue_.counters().dropped));
  recorder.set("staleness/waited", static_cast<double>(queue_.counters().waited));
  recorder.set("data/epoch", parts_.prompts.epochs(next_group_));
  if (parts_.config.algo.filter_groups) {
    const int64_t filtered = queue_.counters().filtered;
    recorder.set("data/groups_filtered", static_cast<double>(filtered - std::exchange(num_filtered_told_, filtered)));
  }
}

SourceState RolloutRole::state() {
  parts_.bodies.gather(queue_.finished());
  SourceState state{next_group_, {}};
  if (parts_.ranks.is_first())
    state.queue = queue_.state([&](data::Group head) { return std::move(parts_.bodies.complete({std::move(head)}).front()); });
  return state;
}

// The bodies of finished groups go to where they would have been generated under this layout.
void RolloutRole::restore(SourceState state) {
  next_group_ = state.next_group;
  if (!state.queue.empty())
    again_ = queue_.restore(state.queue, [&](data::Group group) {
      parts_.bodies.restore(group);
      return group;
    });
  if (value(queue_.version()) != state.version || queue_.knows(data::GroupId{next_group_}))
    throw UserError("queue.bin of the checkpoint",
                    join_text("is of policy version ", value(queue_.version()), ", and does not fit its state.json of version ",
                              state.version, " and next group ", next_group_),
                    "the files as the run wrote them; a run that began with --replay has no queue to go on with");
  num_filtered_told_ = queue_.counters().filtered - queue_.num_unsaid();
}

}  // namespace tandem::runtime
