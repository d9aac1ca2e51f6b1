// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/rollout_role.h"

#include <ATen/ops/empty.h>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/queue/backend/exchange.h"

namespace tandem::runtime {
namespace {

constexpr int kTrainedTag = 20;  // of the message that ranks which only train come to a meeting

std::exception_ptr fault_of(const std::optional<generate::Grades>& grades, Generation& generation) {
  const std::exception_ptr of_environment = generation.generator() ? generation.generator()->fault() : nullptr;
  return of_environment || !grades ? of_environment : grades->fault();
}

// What a batch has by now: of all ranks the groups in the queue, of this one those that wait for their scores, and the tokens.
void tell(const RolloutParts& parts, const queue::SampleQueue& queue, int64_t num_unscored, int64_t tokens) {
  const int64_t done = std::min<int64_t>(queue.num_finished() + num_unscored, queue.groups_per_step());
  if (parts.tell) parts.tell(done * parts.config.schedule.queue.group_size, tokens);
}

// That a run may go on. Errors: InternalError if it may not; UserError where it follows another.
void check_goes_on(bool may_go_on, bool follows) {
  if (may_go_on) return;
  TANDEM_CHECK(follows, "no batch is ready, no group runs and none may start");
  throw UserError("--replay-decisions", "has a batch of groups that do not end here before the weights of the next",
                  "the recipe, the data, the weights and model.products of that run");
}

// Errors: UserError.
void check_passes(const data::DecisionReader& followed, const policy::Ranks& ranks) {
  for (int64_t step = 1; step <= followed.num_steps(); ++step)
    for (const data::EarlyGroups& pass : followed.of(data::StepId{step}).early)
      if (std::ssize(pass) != ranks.train_layout.dp)
        throw UserError("--replay-decisions",
                        join_text("has a pass of ", pass.size(), " replicas in step ", step, ", and ", ranks.train_layout.dp, " train"),
                        "decisions.jsonl as that run wrote it");
}

// What says whether a rank has something left to do.
struct Work {
  const queue::SampleQueue& queue;
  const Generation& generation;
  const std::optional<generate::Grades>& grades;
  const data::DecisionLog& decisions;
};

bool may_go_on(comm::Group& peers, const Work& work) {
  const bool may_start = work.decisions.num_to_start(work.queue.num_may_start()) > 0;
  return comm::any_of(peers, work.generation.running() || (work.grades && work.grades->pending()) || may_start);
}

bool batch_ready(queue::SampleQueue& queue, const data::DecisionLog& decisions) {
  if (!decisions.follows()) return queue.batch_ready();
  return decisions.is_done_before_batch() && std::ranges::includes(queue.finished(), decisions.batch());
}

// False if it is filtered.
bool put(const data::Group& head, planner::Homes& homes, queue::SampleQueue& queue, data::DecisionLog& decisions) {
  homes.finish(head.id);
  if (!decisions.may_be_put(head.id) || queue.put(head)) return true;
  decisions.filtered(head.id);
  return false;
}

// Groups under way, by their state: they wait for their first token, run, are being scored, or are finished. Collective. `waiting` and
// `scoring` are this rank's.
void record_states(monitor::Recorder& recorder, comm::Group& world, const queue::SampleQueue& queue, int64_t waiting, int64_t scoring) {
  const auto all_waiting = static_cast<int64_t>(comm::sum_over(world, static_cast<double>(waiting)));
  const auto all_scoring = static_cast<int64_t>(comm::sum_over(world, static_cast<double>(scoring)));
  const int64_t outstanding = queue.num_outstanding(), finished = queue.num_finished();
  const int64_t running = outstanding - all_waiting - all_scoring - finished;
  TANDEM_CHECK(running >= 0, all_waiting, " wait, ", all_scoring, " are scored, ", finished, " finished of ", outstanding);
  for (const auto& [name, count] : {std::pair("outstanding", outstanding), std::pair("waiting", all_waiting), std::pair("running", running),
                                    std::pair("scoring", all_scoring), std::pair("depth", finished)})
    recorder.set(join_text("queue/", name), static_cast<double>(count));
}

std::optional<rollout::EngineSetup> engine_setup(const RolloutParts& parts) {
  if (!parts.decoder) return std::nullopt;
  return rollout::EngineSetup{*parts.decoder, parts.memory.device,
                              std::min(parts.tokenizer.vocab_size(), parts.model.vocab_size), parts.max_context_tokens,
                              parts.stepped, /*logs_graphs=*/true};
}

// Of this rank's replica in the run that this one follows.
std::optional<std::vector<data::Effect>> effects_to_follow(const RolloutParts& parts) {
  if (!parts.followed || !parts.decoder) return std::nullopt;
  const policy::Ranks& ranks = parts.ranks;
  const auto replica = static_cast<size_t>(ranks.rollout_layout.dp_rank(ranks.rollout_rank()));
  return replica < parts.followed->effects().size() ? parts.followed->effects()[replica] : std::vector<data::Effect>();
}

generate::GenerateSetup generate_setup(const RolloutParts& parts) {
  generate::GenerateSetup setup = policy::generate_setup(parts.config, parts.model, parts.tokenizer, parts.environment);
  setup.most_tokens = parts.most_tokens;
  return setup;
}

}  // namespace

RolloutRole::RolloutRole(const RolloutParts& parts)
    : parts_(parts),
      queue_(parts.config.schedule.queue, takes(parts.config), parts.config.reward.shaping()),
      generation_(parts.config, parts.ranks, engine_setup(parts), generate_setup(parts), effects_to_follow(parts)),
      decisions_(parts.followed) {
  const std::string layouts = to_text(parts.ranks);
  if (parts.followed && parts.followed->layouts() != layouts)
    throw UserError("--replay-decisions", join_text("is of a run with ", parts.followed->layouts(), ", and this one has ", layouts),
                    "as many ranks and the layouts that that run had");
  if (parts.followed && parts.config.has_episodes())
    throw UserError("--replay-decisions", "repeats what a clock decided, and not what an environment did",
                    "a recipe without episode.environment");
  if (parts.followed) check_passes(*parts.followed, parts.ranks);
  if (parts.reward)
    grades_.emplace(*parts.reward, reward::grading_of(parts.config.reward), parts.config.schedule.queue.take_timeout_s);
}

void RolloutRole::start_groups(bool beside_training) {
  for (int64_t n = decisions_.num_to_start(queue_.num_may_start()); n > 0; --n) {
    const data::GroupId next = again_.empty() ? data::GroupId{next_group_} : again_.front();
    const int64_t chosen = parts_.config.is_free() ? parts_.homes.least_busy(beside_training) : parts_.homes.round(next);
    const int64_t home = decisions_.home_of_next(chosen);
    if (beside_training) started_ahead_.push_back(home);
    start(home);
  }
}

// The next group. Every rank's queue knows of all.
void RolloutRole::start(int64_t home) {
  const data::GroupId id = again_.empty() ? data::GroupId{next_group_++} : again_.front();
  if (!again_.empty()) again_.erase(again_.begin());
  queue_.start(id, queue_.version());
  decisions_.started(home);
  settle(id, home, {});
}

// Whose replica `home` is generates the group, or what is left of it.
void RolloutRole::settle(data::GroupId id, int64_t home, std::vector<data::Sample> begun) {
  parts_.homes.set(id, home);
  if (!parts_.decoder || home != parts_.ranks.rollout_layout.dp_rank(parts_.ranks.rollout_rank())) return;
  generation_.generator()->admit(id, parts_.prompts.at_position(value(id)), std::move(begun));
}

void RolloutRole::hand_to_graders(std::vector<data::Group> ended) {
  tell(parts_, queue_, grades_ ? grades_->num_pending() : std::ssize(unscored_), generation_.counts().drawn - num_tokens_told_);
  for (data::Group& group : ended) {
    if (!queue_.is_outstanding(group.id)) continue;  // dropped, and the stream has not heard of it
    parts_.bodies.keep(group);
    if (grades_) {
      scoring_.insert(group.id);
      grades_->submit(std::move(group));
    } else if (parts_.ranks.speaks_for_rollout()) {
      unscored_.push_back(std::move(group));
    }
  }
}

// Some token steps; the scorer's threads grade what they finish while the engine goes on.
void RolloutRole::run_round(comm::Group& peers) {
  const bool alone = parts_.ranks.world.size() == 1;  // else all ranks stop between rounds
  generation_.advance(parts_.config.round_steps(), peers, alone ? parts_.stop : StopRequested(),
                      [&](std::vector<data::Group> ended) { hand_to_graders(std::move(ended)); });
  const bool is_idle = !generation_.running();  // nothing under way, with an environment neither
  std::vector<data::Group> mine =
      grades_ ? grades_->collect(generation_.advanced() || !is_idle || parts_.config.is_free(), is_idle) : std::exchange(unscored_, {});
  for (const data::Group& group : mine) scoring_.erase(group.id);
  if (&peers != &parts_.ranks.world && parts_.ranks.speaks_for_rollout()) ahead_.insert(ahead_.end(), mine.begin(), mine.end());
  const double begin = now_s();
  for (const data::Group& head : parts_.bodies.exchange(peers, std::move(mine), parts_.ranks.speaks_for_rollout()))
    if (!put(head, parts_.homes, queue_, decisions_)) filtered_.push_back(head);
  tell(parts_, queue_, grades_ ? grades_->num_pending() : 0, generation_.counts().drawn - num_tokens_told_);
  if (&peers == &parts_.ranks.world) parts_.bodies.drop(std::exchange(filtered_, {}));  // else the others must hear of them first
  parts_.recorder.add("time/exchange_s", now_s() - begin);
}

std::optional<data::Batch> RolloutRole::next_batch(data::StepId step, data::PolicyVersion) {
  // Restored groups are outstanding from the start: finished ones may form a batch at once, and a checkpoint after it must
  // know the others, too.
  if (!again_.empty()) start_groups(false);
  generation_.open();
  while (!batch_ready(queue_, decisions_)) {
    if (stop_agreed(parts_.ranks.world, *parts_.config.reward.notices, parts_.stop, fault_of(grades_, generation_))) return std::nullopt;
    check_filtered(queue_.num_filtered(), parts_.config);
    start_groups(false);
    // Under `wait` a full batch may be held back for a straggler: that is the price of the policy, and it is reported.
    const bool held_back = !queue_.must_wait_for().empty();
    work_early();
    const double begin = now_s();
    run_round(parts_.ranks.world);
    const bool has_early_pass = !decisions_.early({}, queue_.finished()).empty();  // where it follows: then the batch waits for it
    const bool goes_on = may_go_on(parts_.ranks.world, {queue_, generation_, grades_, decisions_});
    check_goes_on(goes_on || has_early_pass || batch_ready(queue_, decisions_), decisions_.follows());
    if (held_back) parts_.recorder.add("time/wait_s", now_s() - begin);
  }
  data::Batch batch = decisions_.follows() ? queue_.take(step, decisions_.batch()) : queue_.take(step);
  decisions_.took(batch);
  close_streams();
  return batch;
}

// Passes of groups that will be in the batch, as far as can be told, while the others generate.
void RolloutRole::work_early() {
  if (!parts_.early) return;
  const data::EarlyGroups groups = decisions_.early(parts_.early->plan(queue_.next_in_line()), queue_.finished());
  if (groups.empty()) return;
  parts_.early->lend(groups);
  decisions_.passed_early(groups);
  std::exception_ptr fault;  // of ranks that train, alike; the others hear of it behind the meeting
  try {
    parts_.ranks.trains() ? parts_.early->make(groups) : run_ahead();
  } catch (const StepFailed&) {
    fault = std::current_exception();
  }
  meet();
  fail_alike(parts_.ranks.world, fault);
}

// Ranks that train, too, stop here. What they leave goes on where nobody trains, if that is quicker.
void RolloutRole::close_streams() {
  generation_.close();
  const policy::Ranks& ranks = parts_.ranks;
  if (!parts_.config.is_free() || ranks.placement.kind != planner::PlacementKind::kMixed) return;
  generation_.collect(ranks.world, [&](std::vector<data::Group> ended) { hand_to_graders(std::move(ended)); });
  std::vector<data::GroupId> mine;
  if (ranks.speaks_for_rollout()) mine = generation_.better_moved();
  mine = decisions_.to_move(comm::values_of_all(ranks.world, mine));
  if (mine.empty()) return;
  std::vector<data::GroupId> here;
  for (const data::GroupId id : mine)
    if (parts_.homes.is_unfinished(id) && parts_.decoder && parts_.homes.of(id) == ranks.rollout_layout.dp_rank(ranks.rollout_rank()))
      here.push_back(id);
  for (data::Group& group : queue::exchange_groups(ranks.world, generation_.take_out(here), ranks.speaks_for_rollout())) {
    const int64_t home = decisions_.home_of_moved(group.id, parts_.homes.least_busy(true));
    decisions_.moved(group.id, home);
    settle(group.id, home, std::move(group.samples));
    num_moved_ += ranks.is_first();
  }
}

bool RolloutRole::accept(const data::Batch& scored) {
  const std::vector<data::GroupId> alike = queue_.filter(scored.step, scored.groups);
  if (alike.empty()) return true;
  parts_.bodies.take_back(scored.groups);
  parts_.bodies.drop(data::bare_heads(alike, parts_.config.schedule.queue.group_size));
  check_filtered(queue_.num_filtered(), parts_.config);
  return false;
}

void RolloutRole::give_back(const data::Batch& batch) {
  if (queue_.give_back()) parts_.bodies.take_back(batch.groups);
}

// Rounds of the ranks that never train, beside the others. In a free run those say when they come to the meeting; a run that follows
// another first starts and filters what that one did before its next update.
void RolloutRole::run_ahead() {
  comm::Group& peers = parts_.ranks.side();
  const double begin = now_s();
  const Deadline longest = Deadline::after_s(parts_.config.parallel.deadline_s);
  const auto is_enough = [&] {
    if (!parts_.config.is_free())
      return queue_.num_finished() >= queue_.groups_per_step() || !may_go_on(peers, {queue_, generation_, grades_, decisions_});
    const bool is_done = decisions_.is_done_ahead();
    if (!is_done) check_goes_on(may_go_on(peers, {queue_, generation_, grades_, decisions_}), true);
    return is_done && comm::any_of(peers, peers.rank() == 0 && (longest.passed() || parts_.ranks.world.arrived(0, kTrainedTag)));
  };
  while (!is_enough() && !filters_too_many(queue_.num_filtered(), parts_.config)) {
    if (comm::any_of(peers, fault_of(grades_, generation_) || (parts_.stop && parts_.stop()))) break;
    start_groups(true);
    run_round(peers);
  }
  if (parts_.config.is_free() && peers.rank() == 0) {
    if (longest.passed() && !parts_.ranks.world.arrived(0, kTrainedTag))
      throw PeerError(join_text("rank ", parts_.ranks.world.rank(), ": rank 0 did not come to the meeting after training within ",
                                parts_.config.parallel.deadline_s, " s (parallel.deadline_s)"));
    at::Tensor nothing = at::empty({0}, at::kByte);
    parts_.ranks.world.receive(nothing, 0, kTrainedTag);
  }
  if (decisions_.is_taken()) ahead_s_ += now_s() - begin;  // else it was beside an early pass, in the stage rollout
}

void RolloutRole::meet() {
  if (!parts_.runs_ahead) return;
  const policy::Ranks& ranks = parts_.ranks;
  if (parts_.config.is_free() && ranks.is_first())
    ranks.world.send(at::empty({0}, at::kByte), ranks.placement.generators().first, kTrainedTag);
  std::vector<int64_t> started = std::exchange(started_ahead_, {});
  if (ranks.world.rank() != ranks.placement.generators().first) started.clear();  // the others say the same
  started = comm::values_of_all(ranks.world, started);
  std::vector<data::Group> heads = parts_.bodies.exchange(ranks.world, std::exchange(ahead_, {}), ranks.speaks_for_rollout());
  if (decisions_.is_taken()) num_ahead_ += std::ssize(heads);
  if (!ranks.only_generates()) {
    size_t next = 0;
    for (bool moved = true; moved;) {  // a group may have started only once another was filtered
      moved = false;
      for (; next < started.size() && queue_.num_may_start() > 0; ++next, moved = true) start(started[next]);
      moved |= std::erase_if(heads, [&](const data::Group& head) {
        if (!queue_.knows(head.id)) return false;
        if (!put(head, parts_.homes, queue_, decisions_)) filtered_.push_back(head);
        return true;
      }) > 0;
    }
    TANDEM_CHECK(next == started.size() && heads.empty(), started.size() - next, " groups cannot start, ", heads.size(), " cannot be put");
  }
  parts_.bodies.drop(std::exchange(filtered_, {}));
}

// Groups that wait for their first token anywhere start at the version that it will be of.
std::vector<data::GroupId> RolloutRole::commit(data::StepId step, data::PolicyVersion after) {
  std::vector<data::Waiting> mine;
  if (parts_.ranks.speaks_for_rollout()) mine = generation_.waiting(after);
  const std::vector<data::Waiting> waiting = decisions_.waiting(comm::values_of_all(parts_.ranks.world, mine));
  const queue::Left left = queue_.commit(step, after, waiting);
  if (parts_.decoder)
    for (data::GroupId id : left.dropped) generation_.generator()->cancel(id);
  decisions_.committed(step, waiting, left.dropped);
  const std::vector<data::GroupId> all = left.all();
  parts_.bodies.drop(data::bare_heads(all, parts_.config.schedule.queue.group_size));
  return all;
}

// Of all streams, on rank 0.
std::string RolloutRole::take_decisions() {
  if (!parts_.config.is_free()) return "";
  const std::string mine = data::to_text(generation_.take_effects());
  const std::vector<std::string> all = comm::texts_of_all(parts_.ranks.world, mine);
  if (!parts_.ranks.is_first()) return "";
  const model::Layout& layout = parts_.ranks.rollout_layout;
  std::vector<std::string> told(static_cast<size_t>(layout.dp));
  for (int rank = 0; rank < layout.world(); ++rank)
    if (layout.speaks(rank))
      told[static_cast<size_t>(layout.dp_rank(rank))] = all[static_cast<size_t>(parts_.ranks.placement.rollout.first + rank)];
  return decisions_.take_lines(told);
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
  if (parts_.config.is_free() && parts_.ranks.placement.kind == planner::PlacementKind::kMixed)
    recorder.set("data/groups_moved", static_cast<double>(std::exchange(num_moved_, 0)));
  const int64_t all = generation_.counts().drawn, drawn = all - std::exchange(num_tokens_told_, all);
  const double tokens = comm::sum_over(world, parts_.ranks.speaks_for_rollout() ? static_cast<double>(drawn) : 0.0);
  recorder.set("throughput/rollout_tokens_per_s", tokens / rollout_s);
  const bool speaks = parts_.ranks.speaks_for_rollout();
  const int64_t preemptions = generation_.counts().preemptions;
  const auto preempted = static_cast<double>(preemptions - std::exchange(num_preemptions_told_, preemptions));
  recorder.set("throughput/preemptions", comm::sum_over(world, speaks ? preempted : 0.0));
  const auto is_outstanding = [&](data::GroupId id) { return queue_.is_outstanding(id); };
  const auto waiting = generation_.waiting(queue_.version());
  record_states(recorder, world, queue_, speaks ? std::ranges::count_if(waiting, is_outstanding, &data::Waiting::id) : 0,
                std::ranges::count_if(scoring_, is_outstanding));
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
