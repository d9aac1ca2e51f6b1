// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/meeting.h"

#include <algorithm>
#include <thread>

#include "tandem/base/check.h"

namespace tandem::comm {
namespace {

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

/// Notes what a rank waits for as long as it lives.
class NotedWait {
 public:
  NotedWait(World& world, int world_rank, const World::Wait& wait) : world_(world), waits_(world.waits[static_cast<size_t>(world_rank)]) {
    std::lock_guard lock(world_.mutex);
    if (waits_.of_thread == std::this_thread::get_id()) waits_.given_up.clear();
    place_ = waits_.now.insert(waits_.now.end(), wait);
  }
  ~NotedWait() {
    std::lock_guard lock(world_.mutex);
    waits_.now.erase(place_);
  }
  void give_up(const std::string& why) {
    std::lock_guard lock(world_.mutex);
    waits_.given_up = why, waits_.of_thread = std::this_thread::get_id();
  }
  NotedWait(const NotedWait&) = delete;
  NotedWait& operator=(const NotedWait&) = delete;

 private:
  World& world_;
  World::RankWaits& waits_;
  std::list<World::Wait>::iterator place_;
};

}  // namespace

Meeting::Meeting(std::shared_ptr<World> world, std::string name, std::vector<int> world_ranks)
    : posts(world_ranks.size()),
      world_(std::move(world)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      arrived_(world_ranks_.size()),
      mail_(world_ranks_.size()),
      has_mail_(world_ranks_.size()) {
  // Spinning only helps while every rank has a processor of its own.
  num_spins_ = size() <= static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 0;
}

void Meeting::meet(int rank, const char* op) {
  std::unique_lock lock(mutex_);
  throw_if_dead(rank, op);
  const uint64_t round = round_.load(std::memory_order_relaxed);
  if (arrive(rank, round, lock)) return;
  wait(rank, {this, op, -1, round}, changed_, [&] { return met(round); });
}

void Meeting::part(int rank) noexcept {
  std::unique_lock lock(mutex_);
  const uint64_t round = round_.load(std::memory_order_relaxed);
  if (arrive(rank, round, lock)) return;
  lock.lock();
  while (!met(round)) world_->clock.wait_until(lock, changed_, Clock::time_point::max());
}

void Meeting::leave(int from, int to, int tag, MessageBytes bytes) {
  {
    std::lock_guard lock(mutex_);
    throw_if_dead(from, "send");
    mail_[static_cast<size_t>(to)][{from, tag}].push_back(std::move(bytes));
  }
  world_->clock.notify_all(has_mail_[static_cast<size_t>(to)]);
}

MessageBytes Meeting::take(int rank, int from, int tag) {
  Mail& mine = mail_[static_cast<size_t>(rank)];
  MessageBytes bytes;
  wait(rank, {this, "receive", from, 0}, has_mail_[static_cast<size_t>(rank)], [&] {
    const auto found = mine.find({from, tag});
    if (found == mine.end() || dead_) return false;
    bytes = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) mine.erase(found);
    return true;
  });
  return bytes;
}

bool Meeting::has(int rank, int from, int tag) {
  std::lock_guard lock(mutex_);
  throw_if_dead(rank, "receive");
  return mail_[static_cast<size_t>(rank)].contains({from, tag});
}

void Meeting::abort(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (!dead_) end(lock, reason);
}

std::string Meeting::death() {
  std::lock_guard lock(mutex_);
  return reason_;
}

void Meeting::end(std::unique_lock<std::mutex>& lock, const std::string& reason) {
  dead_ = true;
  reason_ = reason;
  const std::vector<std::weak_ptr<Meeting>> children = children_;
  lock.unlock();
  world_->clock.notify_all(changed_);
  for (std::condition_variable& has_mail : has_mail_) world_->clock.notify_all(has_mail);
  for (const auto& child : children)
    if (auto alive = child.lock()) alive->abort(reason);
}

void Meeting::check_alive(int rank, const char* op) {
  std::lock_guard lock(mutex_);
  throw_if_dead(rank, op);
}

void Meeting::adopt(const std::shared_ptr<Meeting>& child) {
  std::lock_guard lock(mutex_);
  if (dead_) child->abort(reason_);
  children_.push_back(child);
}

std::string Meeting::place(int rank, const char* op) const {
  return join_text("rank ", world_ranks_[static_cast<size_t>(rank)], ": ", op, " in group '", name_, "'");
}

bool Meeting::arrive(int rank, uint64_t round, std::unique_lock<std::mutex>& lock) {
  num_arrived_ += arrived_[static_cast<size_t>(rank)] ? 0 : 1;
  arrived_[static_cast<size_t>(rank)] = true;
  const bool last = num_arrived_ == size();
  if (last) {
    std::fill(arrived_.begin(), arrived_.end(), false);
    num_arrived_ = 0;
    round_.store(round + 1, std::memory_order_release);
  }
  lock.unlock();
  if (last) {
    world_->clock.notify_all(changed_);
    return true;
  }
  for (int spin = 0; spin < num_spins_; ++spin)
    if (met(round)) return true;
  return false;
}

template <class Ready>
void Meeting::wait(int rank, const World::Wait& wait, std::condition_variable& changed, Ready ready) {
  NotedWait noted(*world_, world_ranks_[static_cast<size_t>(rank)], wait);
  try {
    std::unique_lock lock(mutex_);
    const Clock::time_point until = world_->clock.now() + duration_of_s(world_->deadline_s);
    while (!ready()) {
      throw_if_dead(rank, wait.op);
      if (world_->clock.now() < until) {
        world_->clock.wait_until(lock, changed, until);
        continue;
      }
      lock.unlock();
      const std::string reason = place(rank, wait.op) + explanation(rank);
      lock.lock();
      if (ready()) break;  // the last of them came meanwhile, and goes on with the operation
      throw_if_dead(rank, wait.op);
      end(lock, reason);
      throw PeerError(reason);
    }
  } catch (const PeerError& e) {
    noted.give_up(e.what());
    throw;
  }
}

void Meeting::throw_if_dead(int rank, const char* op) const {
  if (dead_) throw EndedByPeer(join_text(place(rank, op), " ended: ", reason_));
}

std::vector<int> Meeting::missing(const World::Wait& wait) {
  if (wait.peer >= 0) return {world_ranks_[static_cast<size_t>(wait.peer)]};
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (!met(wait.round) && !arrived_[static_cast<size_t>(r)]) ranks.push_back(world_ranks_[static_cast<size_t>(r)]);
  return ranks;
}

/// A peer that waits itself is not to blame, but whoever it waits for; and one that has given up has said why. Ranks that
/// all wait for each other are named with what they wait in.
std::string Meeting::explanation(int rank) {
  std::lock_guard lock(world_->mutex);
  const int self = world_ranks_[static_cast<size_t>(rank)];
  std::vector<int> reached = {self};
  std::vector<std::string> guilty, waiting;
  for (size_t i = 0; i < reached.size(); ++i) {
    const World::RankWaits& waits = world_->waits[static_cast<size_t>(reached[i])];
    if (!waits.given_up.empty()) return " ended: " + waits.given_up;
    std::vector<int> missing;
    std::string where;
    for (const World::Wait& wait : waits.now)
      for (int r : wait.meeting->missing(wait)) {
        if (missing.empty()) where = join_text(" (it waits in ", wait.op, " of group '", wait.meeting->name(), "')");
        missing.push_back(r);
      }
    const std::string name = join_text("rank ", reached[i]);
    if (reached[i] != self && missing.empty()) guilty.push_back(name);
    else if (reached[i] != self) waiting.push_back(name + where);
    for (int r : missing)
      if (std::find(reached.begin(), reached.end(), r) == reached.end()) reached.push_back(r);
  }
  const std::string whom = !guilty.empty() ? joined(guilty) : !waiting.empty() ? joined(waiting) : join_text("rank ", self, " itself");
  return join_text(": no sign of ", whom, " within ", world_->deadline_s, " s");
}

}  // namespace tandem::comm
