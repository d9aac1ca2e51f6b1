// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/stream.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/comm/scalar.h"
#include "tandem/device/process.h"

namespace tandem::rollout {
namespace {

// How long it rests without a sequence to run before it asks its peers again what they were told.
constexpr double kRestS = 0.001;

}  // namespace

Stream::Stream(Engine& engine, std::vector<comm::Group*> peers)
    : engine_(engine), peers_(std::move(peers)), groups_(engine), thread_([this] { work(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::check_fault() const {
  if (fault_) std::rethrow_exception(fault_);
}

void Stream::tell(Told told) {
  {
    std::lock_guard lock(mutex_);
    check_fault();
    told_.push_back(std::move(told));
    ++num_told_;
  }
  changed_.notify_all();
}

void Stream::admit(GroupRequest request) {
  tell([this, request = std::make_shared<GroupRequest>(std::move(request))] { groups_.admit(std::move(*request)); });
}

void Stream::cancel(data::GroupId group) {
  tell([this, group] {
    groups_.cancel(group);
    std::lock_guard lock(mutex_);
    std::erase_if(finished_, [&](const data::Group& done) { return done.id == group; });
  });
}

void Stream::switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version) {
  tell([this, &parameters, version] { engine_.switch_weights(parameters, version); });
}

void Stream::pause() {
  tell([this] { is_to_pause_ = true; });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_paused_ || fault_; });  // a token step, in which the engine's own waits have deadlines
  check_fault();
}

void Stream::resume() {
  {
    std::lock_guard lock(mutex_);
    check_fault();
    TANDEM_CHECK(is_paused_, "a stream goes on that was not paused");
    is_paused_ = false;
  }
  changed_.notify_all();
}

void Stream::wait_obeyed() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return told_.empty() || fault_; });  // as in pause
  check_fault();
}

std::vector<data::Group> Stream::take_finished() {
  std::lock_guard lock(mutex_);
  check_fault();
  return std::exchange(finished_, {});
}

bool Stream::wait_finished(const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.time(), [&] { return !finished_.empty() || fault_ || (!runs_ && told_.empty()); });
  check_fault();
  return !finished_.empty();
}

bool Stream::busy() const {
  std::lock_guard lock(mutex_);
  check_fault();
  return runs_ || !told_.empty() || !finished_.empty();
}

StreamState Stream::state() const {
  std::lock_guard lock(mutex_);
  check_fault();
  return state_;
}

std::vector<int64_t> Stream::take_effects() {
  std::lock_guard lock(mutex_);
  return std::exchange(effects_, {});
}

void Stream::work() {
  device::name_thread("stream");
  try {
    while (obey()) {
      if (engine_.must_step()) {
        engine_.step();
        publish(1);
      } else {
        rest();
      }
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    fault_ = std::current_exception();
  }
  changed_.notify_all();
}

// What all peers were told by now. False if the stream is to end.
bool Stream::obey() {
  std::unique_lock lock(mutex_);
  int64_t due = num_told_;
  lock.unlock();
  for (comm::Group* group : peers_) due = comm::min_over(*group, due);
  for (; num_obeyed_ < due; ++num_obeyed_) {
    lock.lock();
    const Told next = std::move(told_.front());
    lock.unlock();
    next();
    lock.lock();
    told_.pop_front();
    effects_.push_back(state_.steps);
    lock.unlock();
    publish(0);
    if (!std::exchange(is_to_pause_, false)) continue;
    lock.lock();
    is_paused_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_paused_ || is_closing_; });  // its owner works with the engine
    lock.unlock();
  }
  lock.lock();
  return !is_closing_;
}

// Nothing runs. Peers ask each other again and again, for one of them may have been told more.
void Stream::rest() {
  const double begin = now_s();
  std::unique_lock lock(mutex_);
  const auto told = [&] { return !told_.empty() || is_closing_; };
  if (peers_.empty()) changed_.wait(lock, told);
  else changed_.wait_for(lock, duration_of_s(kRestS), told);
  state_.idle_s += now_s() - begin;
}

// How things stand between two tokens.
void Stream::publish(int64_t num_steps) {
  std::vector<data::Group> finished = groups_.finished();
  std::vector<data::GroupId> without_token = groups_.without_token();
  const EngineCounts counts = engine_.counts();
  bool changes = false;
  {
    std::lock_guard lock(mutex_);
    state_.steps += num_steps;
    state_.counts = counts;
    state_.version = engine_.version();
    state_.without_token = std::move(without_token);
    changes = !finished.empty() || runs_ != engine_.running();
    runs_ = engine_.running();
    std::ranges::move(finished, std::back_inserter(finished_));
  }
  if (changes) changed_.notify_all();
}

}  // namespace tandem::rollout
