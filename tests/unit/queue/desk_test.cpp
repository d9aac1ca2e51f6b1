// SPDX-License-Identifier: Apache-2.0
// A whole job under a virtual clock: a controller that is started again from its checkpoints, workers that come, hang and die, and a
// network that delays, loses and repeats messages. In the history that survives each group is trained once, none is lost, and none lags
// too far.
#include "tandem/queue/desk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <queue>
#include <set>

#include "tandem/base/check.h"
#include "tandem/base/rng.h"
#include "tandem/queue/caller.h"

namespace tandem::queue {
namespace {

constexpr double kLeaseS = 10, kResendS = 1, kBeatS = 3;
constexpr double kStuckS = 500;  // without a step

struct Plan {
  Options queue{.groups_per_step = 4, .group_size = 2, .staleness = 1};
  int64_t num_workers = 8, slots = 3, num_steps = 60;
  double mean_group_s = 4, train_s = 3, fetch_s = 0.5, wake_s = 0.3;
  double p_lost = 0.05, p_repeated = 0.05;      // of each message
  double deaths_per_s = 0.05, hangs_per_s = 0.02, restarts_per_s = 0.004;  // of the job
  int64_t checkpoint_every = 3;
  // What a weakened form leaves out.
  bool forgets_calls = false, trusts_old_history = false, never_expires = false;
};

/// What the rest of the job sees of a group's body.
struct Body {
  int64_t first_version = 0;
};

class Job {
 public:
  Job(const Plan& plan, uint64_t seed, uint64_t stream) : plan_(plan), random_(seed, stream) {}

  /// "" or the first violation.
  std::string run();
  int64_t num_trained() const { return std::ssize(trained_); }
  int64_t num_lost_bodies = 0, num_restarts = 0, num_refused = 0;  // refused: of workers that were given up

 private:
  struct Worker {
    std::string store;
    Caller caller;
    int64_t version = -1;    // of its weights; -1: none
    bool fetches = false;
    double hangs_until_s = 0, next_beat_s = 0, next_lease_s = 0;
    struct Held {
      Lease lease;
      double done_s = 0;
      std::optional<int64_t> first_version = {};
      bool is_reported = false;
    };
    std::map<GroupId, Held> held = {};
    std::map<GroupId, Body> bodies = {};     // in its store
    std::vector<GroupId> in_put = {};
  };
  struct Saved {
    std::vector<std::byte> queue;
    GroupId next{0};
    int64_t step = 0, num_trained = 0;
    std::map<GroupId, Body> bodies;
  };
  using Receive = std::function<void(const Answer&)>;

  double uniform() { return random_.uniform(); }
  double exponential(double mean) { return -mean * std::log(1 - uniform()); }
  void at(double seconds, std::function<void()> act) { events_.push({now_s_ + seconds, num_events_++, std::move(act)}); }
  void fail(const std::string& what) {
    if (violation_.empty()) violation_ = join_text(what, " at ", now_s_, " s");
  }

  void start_controller();
  void send(const Call& call, Receive receive);
  void call(const std::shared_ptr<Worker>& worker, decltype(Call::verb) verb);
  void transmit(const std::shared_ptr<Worker>& worker, int64_t number);
  void hear(const std::shared_ptr<Worker>& worker, const Answer& answer);
  void add_worker();
  void wake(const std::shared_ptr<Worker>& worker);
  void fetch(const std::shared_ptr<Worker>& worker, int64_t version);
  void work(Worker& worker);
  void train();
  void call_as_trainer(decltype(Call::verb) verb);
  void transmit_as_trainer(int64_t number);
  void hear_as_trainer(const Answer& answer);
  void read(const answer::Taken& taken);
  void finish_step(const data::Batch& batch, const std::vector<GroupId>& left);
  void save();
  void disturb();

  const Plan plan_;
  RandomStream random_;
  struct Event {
    double time_s;
    int64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(time_s, number) > std::pair(other.time_s, other.number); }
  };
  std::priority_queue<Event> events_;
  int64_t num_events_ = 0;
  double now_s_ = 0, last_step_s_ = 0;
  std::string violation_;

  std::unique_ptr<Controller> controller_;
  std::unique_ptr<Desk> desk_;
  int64_t incarnation_ = -1, step_ = 0, forgotten_ = 1 << 20;
  bool trains_ = false;
  std::optional<Caller> trainer_;
  data::Batch batch_;                      // that it trains, or commits
  std::map<std::string, std::vector<GroupId>> losses_;  // bodies that it missed, by the store where they should be
  Saved saved_;
  std::map<GroupId, Body> own_bodies_;     // of a checkpoint
  std::vector<GroupId> trained_;           // of the history that survives
  std::set<GroupId> over_;                 // trained or dropped, of the same
  std::set<GroupId> saved_over_;
  std::map<LeaseNumber, int64_t> reported_;  // the version of the first token, where other workers read it
  std::map<std::string, std::shared_ptr<Worker>> workers_;  // by store
  int64_t num_workers_ever_ = 0;
};

void Job::start_controller() {
  ++incarnation_;
  controller_ = std::make_unique<Controller>(plan_.queue, LeaseTerms{kLeaseS, Incarnation{plan_.trusts_old_history ? 0 : incarnation_}});
  if (!saved_.queue.empty()) controller_->restore(saved_.queue, saved_.next);
  desk_ = std::make_unique<Desk>(*controller_, Incarnation{incarnation_}, "own");
  own_bodies_ = saved_.bodies;
  step_ = saved_.step;
  trained_.resize(static_cast<size_t>(saved_.num_trained));
  over_ = saved_over_;
  reported_.clear();
  trains_ = false;
  batch_ = {};
  losses_.clear();
  trainer_.emplace(call::Join{"trainer"}, 5'000'000'000 + 1000 * incarnation_);
}

// There and back, each way with its own luck.
void Job::send(const Call& call, Receive receive) {
  const auto deliver = [this](std::function<void()> act) {
    for (int copies = uniform() < plan_.p_repeated ? 2 : 1; copies > 0; --copies)
      if (uniform() >= plan_.p_lost) at(exponential(0.02), act);
  };
  deliver([this, deliver, bytes = to_bytes(call), receive = std::move(receive)] {
    Call heard = call_of(bytes);
    if (plan_.trusts_old_history) heard.incarnation = desk_->incarnation();
    if (plan_.forgets_calls && !std::holds_alternative<call::Join>(heard.verb)) heard.number = ++forgotten_;
    std::optional<Answer> answer = desk_->answer(heard, now_s_);
    if (!answer) return;
    answer->number = call_of(bytes).number;
    deliver([receive, bytes = to_bytes(*answer)] { receive(answer_of(bytes)); });
  });
}

void Job::transmit(const std::shared_ptr<Worker>& worker, int64_t number) {
  const auto& under_way = worker->caller.under_way();
  if (!under_way || under_way->number != number || !workers_.contains(worker->store)) return;
  send(*under_way, [this, worker](const Answer& answer) {
    if (workers_.contains(worker->store)) hear(worker, answer);
  });
  at(kResendS, [this, worker, number] { transmit(worker, number); });
}

void Job::call(const std::shared_ptr<Worker>& worker, decltype(Call::verb) verb) {
  const Call& call = std::holds_alternative<call::Join>(verb) ? worker->caller.begin_join() : worker->caller.begin(std::move(verb));
  transmit(worker, call.number);
}

void Job::add_worker() {
  const std::string store = join_text("w", num_workers_ever_);
  auto worker = std::make_shared<Worker>(Worker{store, Caller({store}, 1'000'000'000 + 1000 * num_workers_ever_)});
  ++num_workers_ever_;
  workers_[store] = worker;
  at(exponential(0.5), [this, worker] { wake(worker); });
}

// New weights take their time, and generation goes on with the old ones meanwhile.
void Job::fetch(const std::shared_ptr<Worker>& worker, int64_t version) {
  if (worker->fetches || version == worker->version) return;
  worker->fetches = true;
  at(exponential(plan_.fetch_s), [worker, version, incarnation = worker->caller.incarnation()] {
    worker->fetches = false;
    if (worker->caller.incarnation() == incarnation) worker->version = version;  // else they are of a history that may be gone
  });
}

void Job::hear(const std::shared_ptr<Worker>& worker, const Answer& answer) {
  if (worker->hangs_until_s > now_s_) {
    at(worker->hangs_until_s - now_s_, [this, worker, answer] { hear(worker, answer); });
    return;
  }
  const auto what = worker->caller.take(answer);
  if (!what) return;
  if (std::holds_alternative<answer::JoinAgain>(*what)) {
    worker->held.clear(), worker->in_put.clear(), worker->bodies.clear();
    worker->version = -1;
  }
  fetch(worker, value(answer.version));
  if (const auto* leased = std::get_if<answer::Leased>(&*what))
    for (const Lease& lease : leased->leases) {
      const double seconds = plan_.mean_group_s * std::min(20.0, 0.4 * std::pow(1 - uniform(), -0.8));
      worker->bodies.erase(lease.group);
      auto& held = worker->held[lease.group] = {lease, now_s_ + seconds};
      if (lease.begun == kNoLease) continue;
      held.first_version = reported_.at(lease.begun);
      const auto begun = std::ranges::find(leased->begun, lease.group, &data::Group::id);
      if (begun == leased->begun.end() || begun->samples.at(0).versions != std::vector{*held.first_version})
        fail(join_text("group ", value(lease.group), " goes on with other tokens"));
    }
  if (const auto* over = std::get_if<answer::Over>(&*what))
    for (const GroupId group : over->groups) worker->held.erase(group), worker->bodies.erase(group);
  if (const auto* kept = std::get_if<answer::Kept>(&*what)) {
    for (size_t i = 0; i < kept->kept.size(); ++i)
      if (!kept->kept[i]) worker->bodies.erase(worker->in_put[i]);
    worker->in_put.clear();
  }
  if (const auto* refused = std::get_if<answer::Refused>(&*what)) fail("refused: " + refused->why);
}

// Tokens up to now.
void Job::work(Worker& worker) {
  if (worker.version < 0) return;
  for (auto& [group, held] : worker.held) {
    if (!held.first_version && (uniform() < 0.5 || held.done_s <= now_s_)) held.first_version = worker.version;
  }
}

void Job::wake(const std::shared_ptr<Worker>& worker) {
  if (!workers_.contains(worker->store)) return;
  at(plan_.wake_s * (0.5 + uniform()), [this, worker] { wake(worker); });
  if (worker->hangs_until_s > now_s_) return;
  work(*worker);
  if (worker->caller.under_way()) return;
  if (!worker->caller.has_joined()) return call(worker, call::Join{});
  call::Put put;
  for (const auto& [group, held] : worker->held) {
    if (held.done_s > now_s_ || !held.first_version) continue;
    data::Group head{group, {}, PolicyVersion{*held.first_version}, std::vector<data::Sample>(static_cast<size_t>(plan_.queue.group_size))};
    for (int64_t i = 0; i < plan_.queue.group_size; ++i) {
      head.samples[static_cast<size_t>(i)].id = data::sample_id(group, plan_.queue.group_size, i);
      head.samples[static_cast<size_t>(i)].scored = true;
    }
    worker->bodies[group] = {*held.first_version};
    put.leases.push_back(held.lease.number);
    put.heads.push_back(std::move(head));
  }
  if (!put.heads.empty()) {
    for (const data::Group& head : put.heads) worker->held.erase(head.id), worker->in_put.push_back(head.id);
    return call(worker, std::move(put));
  }
  if (worker->next_beat_s <= now_s_) {
    worker->next_beat_s = now_s_ + kBeatS;
    call::Beat beat{PolicyVersion{std::max<int64_t>(0, worker->version)}, {}, {}, {}};
    for (const auto& [group, body] : worker->bodies) beat.finished.push_back(group);
    for (auto& [group, held] : worker->held) {
      held.is_reported = held.is_reported || (held.first_version && uniform() < 0.5);
      if (held.is_reported) {
        reported_[held.lease.number] = *held.first_version;
        const int64_t size = plan_.queue.group_size;
        data::Group& begun = beat.begun.emplace_back(data::Group{group, {}, {}, std::vector<data::Sample>(static_cast<size_t>(size))});
        for (int64_t i = 0; i < size; ++i) begun.samples[static_cast<size_t>(i)].id = data::sample_id(group, size, i);
        begun.samples[0].versions = {*held.first_version};
        beat.from.resize(beat.from.size() + begun.samples.size());
      }
      beat.leases.push_back({group, held.lease.number, held.first_version.has_value(), held.is_reported});
    }
    return call(worker, std::move(beat));
  }
  const int64_t free = plan_.slots - std::ssize(worker->held);
  if (free > 0 && worker->version >= 0 && worker->next_lease_s <= now_s_) {
    worker->next_lease_s = now_s_ + plan_.wake_s;
    call(worker, call::LeaseGroups{free, PolicyVersion{worker->version}});
  }
}

// The trainer ends with the controller, but talks to it as workers do.
void Job::train() {
  at(0.3, [this] { train(); });
  if (!plan_.never_expires) desk_->expire(now_s_);
  if (trains_ || trainer_->under_way()) return;
  if (!trainer_->has_joined()) return call_as_trainer(call::Join{});
  if (!batch_.groups.empty()) return call_as_trainer(call::Commit{batch_.step, PolicyVersion{step_ + 1}});
  if (!losses_.empty()) {
    auto loss = losses_.extract(losses_.begin());
    return call_as_trainer(call::Lose{std::move(loss.mapped()), loss.key()});
  }
  call_as_trainer(call::Take{StepId{step_ + 1}, PolicyVersion{step_}});
}

void Job::call_as_trainer(decltype(Call::verb) verb) {
  const Call& call = std::holds_alternative<call::Join>(verb) ? trainer_->begin_join() : trainer_->begin(std::move(verb));
  transmit_as_trainer(call.number);
}

void Job::transmit_as_trainer(int64_t number) {
  const auto& under_way = trainer_->under_way();
  if (!under_way || under_way->number != number) return;
  send(*under_way, [this, incarnation = incarnation_](const Answer& answer) {
    if (incarnation == incarnation_) hear_as_trainer(answer);
  });
  at(kResendS, [this, number] { transmit_as_trainer(number); });
}

void Job::hear_as_trainer(const Answer& answer) {
  const auto what = trainer_->take(answer);
  if (!what) return;
  if (const auto* taken = std::get_if<answer::Taken>(&*what); taken && !taken->heads.empty()) read(*taken);
  if (const auto* over = std::get_if<answer::Over>(&*what)) finish_step(std::exchange(batch_, {}), over->groups);
  if (const auto* refused = std::get_if<answer::Refused>(&*what)) fail("the trainer is refused: " + refused->why);
}

void Job::read(const answer::Taken& taken) {
  data::Batch batch{StepId{step_ + 1}, PolicyVersion{step_}, {}};
  for (size_t i = 0; i < taken.heads.size(); ++i) {
    const GroupId group = taken.heads[i].id;
    const auto store = workers_.find(taken.stores[i]);
    const std::map<GroupId, Body>* bodies = store == workers_.end() ? nullptr : &store->second->bodies;
    if (taken.stores[i] == "own") bodies = &own_bodies_;
    if (!bodies || !bodies->contains(group)) {
      ++num_lost_bodies;
      losses_[taken.stores[i]].push_back(group);
      continue;
    }
    batch.groups.push_back({group, {}, PolicyVersion{bodies->at(group).first_version}, {}});
  }
  if (!losses_.empty()) return;
  trains_ = true;
  at(exponential(plan_.train_s), [this, batch, incarnation = incarnation_] {
    if (incarnation != incarnation_) return;
    trains_ = false;
    batch_ = batch;
  });
}

void Job::finish_step(const data::Batch& batch, const std::vector<GroupId>& left) {
  last_step_s_ = now_s_;
  for (const data::Group& group : batch.groups) {
    const int64_t lag = data::lag(group, PolicyVersion{step_});
    if (lag < 0 || lag > plan_.queue.staleness) fail(join_text("group ", value(group.id), " is trained with lag ", lag));
    if (!over_.insert(group.id).second) fail(join_text("group ", value(group.id), " is trained twice"));
    trained_.push_back(group.id);
    own_bodies_.erase(group.id);
  }
  ++step_;
  for (const GroupId group : left)
    if (!over_.insert(group).second) fail(join_text("group ", value(group), " is dropped, and was trained or dropped before"));
  if (step_ % plan_.checkpoint_every == 0) save();
}

void Job::save() {
  saved_ = {controller_->state(), controller_->next_group(), step_, num_trained(), {}};
  for (const GroupId group : controller_->queue().finished()) {
    const std::string store = desk_->body_of(group).store;
    if (store == "own") saved_.bodies[group] = own_bodies_.at(group);
    else if (const auto worker = workers_.find(store); worker != workers_.end() && worker->second->bodies.contains(group))
      saved_.bodies[group] = worker->second->bodies.at(group);
    // Else it is found missing when its batch is read.
  }
  saved_over_ = over_;
}

void Job::disturb() {
  constexpr double kStepS = 0.5;
  at(kStepS, [this] { disturb(); });
  const auto any = [&] {
    return std::next(workers_.begin(), static_cast<int64_t>(uniform() * static_cast<double>(workers_.size())))->second;
  };
  if (!workers_.empty() && uniform() < plan_.deaths_per_s * kStepS) {
    workers_.erase(any()->store);
    at(exponential(5), [this] { add_worker(); });
  }
  if (!workers_.empty() && uniform() < plan_.hangs_per_s * kStepS) any()->hangs_until_s = now_s_ + exponential(2 * kLeaseS);
  if (uniform() < plan_.restarts_per_s * kStepS) {
    ++num_restarts;
    num_refused += controller_->lease_counters().late + desk_->counters().of_unknown;
    start_controller();
    last_step_s_ = now_s_;
  }
}

std::string Job::run() {
  start_controller();
  for (int64_t i = 0; i < plan_.num_workers; ++i) add_worker();
  train();
  disturb();
  while (violation_.empty() && step_ < plan_.num_steps) {
    Event next = events_.top();
    events_.pop();
    now_s_ = next.time_s;
    next.act();
    if (now_s_ - last_step_s_ > kStuckS) fail("no progress");
  }
  if (!violation_.empty()) return violation_;
  num_refused += controller_->lease_counters().late + desk_->counters().of_unknown;
  // Of the history that survives: all that ever started is trained, dropped, or still under way.
  const int64_t started = value(controller_->next_group());
  if (started != std::ssize(over_) + controller_->queue().num_outstanding())
    return join_text(started, " started, ", over_.size(), " trained or dropped, ", controller_->queue().num_outstanding(), " under way");
  if (num_trained() != plan_.num_steps * plan_.queue.groups_per_step) return join_text(num_trained(), " groups are trained");
  return "";
}

class DeskJobs : public testing::TestWithParam<std::tuple<int64_t, const char*>> {
 protected:
  Plan plan() const {
    Plan plan;
    plan.queue.staleness = std::get<0>(GetParam());
    plan.queue.lag_policy = std::get<1>(GetParam());
    return plan;
  }
};

TEST_P(DeskJobs, LoseNothingAndTrainNothingTwice) {
  int64_t lost = 0, restarts = 0, refused = 0;
  for (uint64_t stream = 0; stream < 40; ++stream) {
    Job job(plan(), 7, stream);
    ASSERT_EQ(job.run(), "") << "stream " << stream;
    lost += job.num_lost_bodies, restarts += job.num_restarts, refused += job.num_refused;
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(restarts, 0);
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Rules, DeskJobs, testing::Combine(testing::Values(0, 1, 3), testing::Values("drop", "wait")),
                         [](const auto& info) { return "S" + std::to_string(std::get<0>(info.param)) + std::get<1>(info.param); });

int num_caught(const Plan& plan) {
  int caught = 0;
  for (uint64_t stream = 0; stream < 20; ++stream) {
    Job job(plan, 11, stream);
    caught += !job.run().empty();
  }
  return caught;
}

TEST(WeakenedDesks, AreCaughtByTheSameJobs) {
  EXPECT_EQ(num_caught({}), 0);
  EXPECT_GT(num_caught({.p_lost = 0.3, .forgets_calls = true}), 0) << "an update is committed twice, or its answer is lost";
  EXPECT_GT(num_caught({.restarts_per_s = 0.03, .trusts_old_history = true}), 0) << "old leases and bodies pass for new ones";
  const Plan deadly{.queue = {.groups_per_step = 4, .group_size = 2}, .deaths_per_s = 0.2, .restarts_per_s = 0, .never_expires = true};
  EXPECT_GT(num_caught(deadly), 0) << "what the dead have never comes";
}

// Workers that are long behind, and a gate that leaves room: what they start must fit behind a batch that is taken.
TEST(DeskJobsOfWorkersBehind, KeepTheBoundUnderWait) {
  Plan plan;
  plan.queue = {.groups_per_step = 2, .group_size = 1, .staleness = 2, .lag_policy = "wait"};
  plan.num_workers = 5, plan.slots = 1, plan.fetch_s = 12, plan.mean_group_s = 2, plan.train_s = 4;
  for (uint64_t stream = 0; stream < 60; ++stream) {
    Job job(plan, 5, stream);
    ASSERT_EQ(job.run(), "") << "stream " << stream;
  }
}

TEST(DeskAtScale, AThousandClientsAndAMillionSamples) {
  Plan plan{.queue = {.groups_per_step = 1024, .group_size = 8, .staleness = 2}, .num_workers = 1024, .num_steps = 123};
  plan.deaths_per_s = 1, plan.hangs_per_s = 1, plan.restarts_per_s = 0.01, plan.checkpoint_every = 2, plan.train_s = 4, plan.wake_s = 1.5;
  Job job(plan, 3, 0);
  ASSERT_EQ(job.run(), "");
  EXPECT_GT(job.num_restarts, 0);
  EXPECT_GE(8 * job.num_trained(), 1'000'000);
}

}  // namespace
}  // namespace tandem::queue
