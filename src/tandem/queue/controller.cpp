// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/controller.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::queue {

using What = Decision::What;

namespace {

constexpr int kNumberBits = 32;  // of the leases and workers of one incarnation
constexpr int64_t kMostWanted = 1 << 20, kMostSpokenFor = 1 << 16;

}  // namespace

Controller::Controller(const Options& options, const LeaseTerms& terms, Takes takes, const data::Shaping& shaping)
    : terms_(terms), first_number_(value(terms.incarnation) << kNumberBits), queue_(options, takes, shaping) {}

WorkerId Controller::join(double now_s) {
  const WorkerId worker{first_number_ + num_workers_ever_++};
  workers_[worker].seen_s = now_s;
  return worker;
}

Controller::Worker* Controller::alive(WorkerId worker, double now_s) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return nullptr;
  found->second.seen_s = std::max(found->second.seen_s, now_s);
  return &found->second;
}

// What was reported of it stays; tokens that nobody can read do not count.
void Controller::end_lease(GroupId group) {
  Turn& turn = turns_.at(group);
  workers_.at(turn.worker).leases.erase(group);
  decide({.what = What::kEnded, .group = group, .lease = turn.lease});
  turn.lease = kNoLease;
  turn.has_token = turn.reported != kNoLease;
  waiting_.insert(group);
  ++counters_.ended;
}

void Controller::leave(WorkerId worker) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  while (!found->second.leases.empty()) end_lease(found->second.leases.begin()->first);
  num_generating_ -= found->second.speaks_for;
  workers_.erase(found);
}

std::vector<WorkerId> Controller::expire(double now_s) {
  std::vector<WorkerId> gone;
  for (const auto& [id, worker] : workers_)
    if (now_s - worker.seen_s > terms_.lease_s) gone.push_back(id);
  for (const WorkerId id : gone) leave(id);
  return gone;
}

// Of `all` groups that run or may start, as many as fall to each worker that generates, less those that it has.
int64_t Controller::rest_of_share(const Worker& worker, int64_t all) const {
  return std::max<int64_t>(0, (all * worker.speaks_for + num_generating_ - 1) / num_generating_ - std::ssize(worker.leases));
}

std::vector<WorkerState> Controller::workers() const {
  std::vector<WorkerState> all;
  for (const auto& [id, worker] : workers_)
    all.push_back({id, worker.seen_s, worker.version, worker.speaks_for, std::ssize(worker.leases)});
  return all;
}

std::vector<Lease> Controller::lease(WorkerId worker, int64_t most, PolicyVersion version, double now_s, int64_t speaks_for) {
  std::vector<Lease> leases;
  Worker* const known = alive(worker, now_s);
  if (!known || version < PolicyVersion{0} || version > queue_.version()) return leases;
  if (most <= 0 && known->speaks_for == 0) return leases;  // it has no weights yet: others may have its share
  speaks_for = std::clamp<int64_t>(speaks_for, 1, kMostSpokenFor);
  num_generating_ += speaks_for - std::exchange(known->speaks_for, speaks_for);
  const int64_t may_start = starts_ ? queue_.num_may_start(version) : 0, asked = most;
  most = std::min(most, rest_of_share(*known, std::ssize(turns_) + may_start));
  const auto give = [&](GroupId group, Turn& turn) {
    turn.lease = LeaseNumber{first_number_ + counters_.leased++};
    turn.worker = worker;
    turn.first = version;
    known->leases[group] = turn.lease;
    leases.push_back({group, turn.lease, turn.reported});
    decide({.what = What::kLeased, .group = group, .lease = turn.lease, .worker = worker, .version = version});
  };
  for (auto group = waiting_.begin(); group != waiting_.end() && std::ssize(leases) < most;) {
    Turn& turn = turns_.at(*group);
    if (queue_.start_of(*group) > version) {
      ++group;
      continue;
    }
    give(*group, turn);
    group = waiting_.erase(group);
  }
  for (int64_t n = std::min(most - std::ssize(leases), may_start); n > 0; --n) {
    const GroupId group = next_;
    next_ = GroupId{value(next_) + 1};
    queue_.start(group, version);
    give(group, turns_[group]);
  }
  known->wanted = std::clamp<int64_t>(asked, std::ssize(leases), kMostWanted + std::ssize(leases)) - std::ssize(leases);
  known->version = version;
  return leases;
}

std::vector<GroupId> Controller::beat(WorkerId worker, PolicyVersion version, std::span<const Standing> leases, double now_s) {
  std::vector<GroupId> over;
  Worker* const known = alive(worker, now_s);
  std::set<GroupId> unnamed;
  if (known)
    for (const auto& [group, number] : known->leases) unnamed.insert(group);
  for (const Standing& each : leases) {
    const auto found = turns_.find(each.group);
    if (!known || !known->leases.contains(each.group) || found->second.lease != each.lease) {
      over.push_back(each.group);
      continue;
    }
    Turn& turn = found->second;
    turn.has_token |= each.has_token;
    if (each.is_reported) turn.reported = each.lease;
    turn.first = std::clamp(version, turn.first, queue_.version());
    unnamed.erase(each.group);
  }
  for (const GroupId group : unnamed) end_lease(group);
  return over;
}

bool Controller::put(WorkerId worker, LeaseNumber lease, data::Group head) {
  const auto found = turns_.find(head.id);
  if (lease == kNoLease || found == turns_.end() || found->second.lease != lease || found->second.worker != worker) {
    ++counters_.late;
    return false;
  }
  ++counters_.finished;
  workers_.at(worker).leases.erase(head.id);
  turns_.erase(found);
  const GroupId group = head.id;
  const bool kept = queue_.put(std::move(head));
  if (kept) decide({.what = What::kFinished, .group = group, .lease = lease});
  return kept;
}

void Controller::lose(std::span<const GroupId> groups) {
  const bool had_taken = queue_.has_taken_any();
  for (const GroupId group : groups) {
    if (!queue_.unfinish(group)) continue;
    turns_[group] = {};
    waiting_.insert(group);
    ++counters_.lost;
    decide({.what = What::kLost, .group = group});
  }
  if (had_taken && !queue_.has_taken_any()) decide({.what = What::kGivenBack});
}

data::Batch Controller::take(StepId step) {
  data::Batch batch = queue_.take(step);
  for (const data::Group& head : batch.groups) decide({.what = What::kTaken, .group = head.id, .step = step});
  return batch;
}

void Controller::give_back() {
  if (queue_.give_back()) decide({.what = What::kGivenBack});
}

// What runs or waits to: nobody has a turn with it any more.
void Controller::forget(GroupId group) {
  const auto found = turns_.find(group);
  if (found == turns_.end()) return;  // it was finished
  if (found->second.lease != kNoLease) workers_.at(found->second.worker).leases.erase(group);
  waiting_.erase(group);
  turns_.erase(found);
}

// Each with the version that its first will be of at least; those that wait for a worker get `next`.
std::vector<data::Waiting> Controller::without_token(PolicyVersion next) const {
  std::vector<data::Waiting> waiting;
  for (const auto& [group, turn] : turns_)
    if (!turn.has_token) waiting.push_back({group, turn.lease != kNoLease ? turn.first : next});
  return waiting;
}

Left Controller::commit(StepId step, PolicyVersion after) {
  Left left = queue_.commit(step, after, without_token(after));
  for (const GroupId group : left.dropped) forget(group);
  for (const GroupId group : left.dropped) decide({.what = What::kDropped, .group = group});
  for (const GroupId group : left.filtered) decide({.what = What::kFiltered, .group = group});
  decide({.what = What::kCommitted, .step = step, .version = after});
  return left;
}

void Controller::restore(std::span<const std::byte> bytes, GroupId next, const SampleQueue::Rewrite& kept) {
  TANDEM_CHECK(counters_.leased == 0, "a controller that leased groups is restored");
  next_ = next;
  for (const GroupId group : queue_.restore(bytes, kept)) {
    queue_.start(group, queue_.version());
    turns_[group] = {};
    waiting_.insert(group);
  }
  TANDEM_CHECK(!queue_.knows(next_), "new groups begin with ", value(next_), ", which has started before");
}

void Follower::adopt(const Lease& lease, PolicyVersion start) {
  queue_.adopt(lease.group, start);
  Turn& turn = turns_[lease.group];
  turn.reported = lease.begun;
  turn.has_token = lease.begun != kNoLease;
  waiting_.insert(lease.group);
}

void Follower::evict(std::span<const GroupId> groups) {
  for (const GroupId group : groups)
    if (queue_.evict(group)) {
      forget(group);
      decide({.what = What::kDropped, .group = group});
    }
}

// Their starts become what is returned, so no worker with older weights gets one of them later.
std::vector<data::Waiting> Follower::follow(PolicyVersion version) {
  std::vector<data::Waiting> waiting = without_token(version);
  queue_.follow(version, waiting);
  for (data::Waiting& each : waiting) each.version = queue_.start_of(each.id);
  return waiting;
}

// Who asked once is counted once, so nothing is asked above for a worker that is gone.
Follower::Wanted Follower::take_wanted() {
  Wanted wanted;
  for (const auto& [id, worker] : workers_)
    if (worker.wanted > 0) wanted.version = std::max(wanted.version, worker.version);
  for (auto& [id, worker] : workers_)
    if (worker.version == wanted.version) wanted.groups += std::exchange(worker.wanted, 0);
  for (const GroupId group : waiting_) wanted.groups -= queue_.start_of(group) <= wanted.version;
  wanted.groups = std::max<int64_t>(0, wanted.groups);
  wanted.workers = std::max<int64_t>(1, num_generating_);
  return wanted;
}

}  // namespace tandem::queue
