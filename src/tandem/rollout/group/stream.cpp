// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/group/stream.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/device/process.h"

namespace tandem::rollout {
namespace {

// How long it rests without a sequence to run before it asks its peers again what they were told.
constexpr double kRestS = 0.001;

}  // namespace

bool FollowedEffects::is_early(data::Effect::Kind kind, int64_t step) const {
  if (!effects_ || next_ >= effects_->size()) return false;
  const data::Effect& next = (*effects_)[next_];
  if (next.kind != kind || next.step < step)
    throw UserError("--replay-decisions", join_text("has '", static_cast<char>(next.kind), "' before token step ", next.step,
                                                    ", and this run comes to '", static_cast<char>(kind), "' before ", step),
                    "the recipe, the data, the weights and model.products of that run");
  return next.step > step;
}

Stream::Stream(Engine& engine, StreamPeers peers, std::optional<std::vector<data::Effect>> effects)
    : engine_(engine), peers_(std::move(peers)), followed_(std::move(effects)), groups_(engine), thread_([this] { work(); }) {}

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
    num_switches_ += told.kind == data::Effect::Kind::kSwitch;
    told_.push_back(std::move(told));
    ++num_told_;
  }
  changed_.notify_all();
}

void Stream::admit(GroupRequest request) {
  const bool has_begun = std::ranges::any_of(request.group.samples, [](const data::Sample& s) { return !s.ids.empty(); });
  const std::optional<data::GroupId> without_token = has_begun ? std::nullopt : std::optional(request.group.id);
  tell({[this, request = std::make_shared<GroupRequest>(std::move(request))] { groups_.admit(std::move(*request)); },
        data::Effect::Kind::kAdmit, without_token});
}

void Stream::cancel(data::GroupId group) {
  const auto act = [this, group] {
    groups_.cancel(group);
    std::lock_guard lock(mutex_);
    std::erase_if(finished_, [&](const auto& done) { return done.second.id == group; });
  };
  tell({act, data::Effect::Kind::kCancel, {}, group});
}

void Stream::switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version) {
  tell({[this, &parameters, version] { engine_.switch_weights(parameters, version); }, data::Effect::Kind::kSwitch});
}

void Stream::pause(std::optional<data::Effect::Kind> kind) {
  tell({[this] { is_to_pause_ = true; }, kind});
  std::unique_lock lock(mutex_);
  wait_for("does not stand still", [&] { return is_paused_; }, lock);
}

void Stream::wait_for(const char* what, const std::function<bool()>& is_so, std::unique_lock<std::mutex>& lock) const {
  const bool is_over = changed_.wait_until(lock, Deadline::after_s(peers_.deadline_s).time(), [&] { return is_so() || fault_; });
  check_fault();
  if (!is_over) throw PeerError(join_text("generation ", what, " after ", peers_.deadline_s, " s (parallel.deadline_s)"));
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

std::vector<data::Group> Stream::take_out(const std::vector<data::GroupId>& groups, bool on_here) {
  {
    std::lock_guard lock(mutex_);
    TANDEM_CHECK(is_paused_, "groups are taken out of a stream that goes on");
  }
  std::vector<data::Group> taken;
  for (const data::GroupId id : groups)
    if (std::optional<data::Group> group = on_here ? groups_.so_far(id) : groups_.take_out(id)) taken.push_back(std::move(*group));
  publish();
  return taken;
}

void Stream::wait_switched() const {
  std::unique_lock lock(mutex_);
  wait_for("has not taken the weights of the last update", [&] { return num_switches_ == 0; }, lock);
}

std::vector<data::Group> Stream::take_finished(int64_t most) {
  std::lock_guard lock(mutex_);
  check_fault();
  std::vector<data::Group> taken;
  for (; !finished_.empty() && finished_.front().first < most; finished_.pop_front()) {
    data::Group& group = finished_.front().second;
    const auto cancels = [&](const Told& told) { return told.cancels == group.id; };  // and it is not in effect yet
    if (std::ranges::none_of(told_, cancels)) taken.push_back(std::move(group));
  }
  return taken;
}

bool Stream::wait_finished(const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.time(), [&] { return !finished_.empty() || fault_ || (!runs_ && told_.empty()); });
  check_fault();
  return !finished_.empty();
}

StreamState Stream::state() const {
  std::lock_guard lock(mutex_);
  check_fault();
  StreamState state = state_;
  for (const Told& told : told_)
    if (told.without_token) state.without_token.push_back(*told.without_token);
  if (rests_since_s_ > 0) state.idle_s += now_s() - rests_since_s_;
  state.awaits = awaits_ && told_.empty() && finished_.empty();
  state.is_busy = runs_ || !told_.empty() || !finished_.empty();
  return state;
}

std::vector<data::Effect> Stream::take_effects() {
  std::lock_guard lock(mutex_);
  return std::exchange(effects_, {});
}

void Stream::work() {
  device::name_thread("stream");
  try {
    while (true) {
      while (obey_until_pause()) {  // what it was told while it stood still comes before the next token
      }
      {
        std::lock_guard lock(mutex_);
        if (is_closing_) break;
      }
      if (must_await() || !engine_.must_step()) {
        rest();
        continue;
      }
      engine_.step();
      ++num_steps_;
      publish();
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    fault_ = std::current_exception();
  }
  changed_.notify_all();
}

// How many of all the things it was ever told may take effect by now. Ranks that share experts agree on the switches and pauses.
int64_t Stream::num_due() {
  int64_t due = 0;
  {
    std::lock_guard lock(mutex_);
    due = num_told_;
  }
  for (comm::Group* group : peers_.alike) due = comm::min_over(*group, due);
  if (!peers_.experts) return due;
  std::vector<int64_t> places;  // of those for all, among all
  {
    std::lock_guard lock(mutex_);
    for (int64_t i = num_obeyed_; i < due; ++i)
      if (told_[static_cast<size_t>(i - num_obeyed_)].is_for_all()) places.push_back(i);
  }
  const int64_t agreed = comm::min_over(*peers_.experts, num_for_all_ + std::ssize(places)) - num_for_all_;
  return agreed < std::ssize(places) ? places[static_cast<size_t>(agreed)] : due;
}

// Whether what it follows has something before the next token that it was not told yet.
bool Stream::must_await() {
  if (!followed_.any()) return false;
  const bool mine = followed_.is_due(num_steps_), any = peers_.experts ? comm::any_of(*peers_.experts, mine) : mine;
  std::lock_guard lock(mutex_);
  awaits_ = any;
  return any;
}

// Whether it stood still.
bool Stream::obey_until_pause() {
  for (const int64_t due = num_due(); num_obeyed_ < due;) {
    std::unique_lock lock(mutex_);
    const Told next = told_.front();
    lock.unlock();
    if (next.kind && followed_.is_early(*next.kind, num_steps_)) break;
    next.act();
    if (next.kind) followed_.advance();
    ++num_obeyed_;
    num_for_all_ += next.is_for_all();
    publish(&next);
    changed_.notify_all();
    if (!std::exchange(is_to_pause_, false)) continue;
    lock.lock();
    state_.unfinished_tokens = groups_.num_tokens();
    is_paused_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_paused_ || is_closing_; });  // its owner works with the engine
    state_.unfinished_tokens.clear();
    return !is_closing_;
  }
  return false;
}

// Nothing runs. Peers ask each other again and again, for one of them may have been told more. Errors: UserError if what it follows has
// something before a token that never comes.
void Stream::rest() {
  std::unique_lock lock(mutex_);
  if (!awaits_ && !told_.empty() && told_.front().kind && followed_.is_early(*told_.front().kind, num_steps_))
    throw UserError("--replay-decisions", join_text("has more than the ", num_steps_, " token steps that this run comes to"),
                    "the recipe, the data, the weights and model.products of that run");
  rests_since_s_ = now_s();
  const int64_t known = num_told_;
  const auto told = [&] { return num_told_ > known || is_closing_; };
  const bool alone = peers_.alike.empty() && !peers_.experts;
  if (alone && num_told_ == num_obeyed_) changed_.wait(lock, told);
  else changed_.wait_for(lock, duration_of_s(kRestS), told);
  state_.idle_s += now_s() - std::exchange(rests_since_s_, 0);
}

// How things stand between two tokens. At no moment does a stream look idle that has just obeyed: it was told something, or it runs.
void Stream::publish(const Told* obeyed) {
  std::vector<data::Group> finished = groups_.finished();
  std::vector<data::GroupId> without_token = groups_.without_token();
  const EngineCounts counts = engine_.counts();
  bool changes = false;
  {
    std::lock_guard lock(mutex_);
    if (obeyed) {
      told_.pop_front();
      if (obeyed->kind) effects_.push_back({*obeyed->kind, num_steps_});
      num_switches_ -= obeyed->kind == data::Effect::Kind::kSwitch;
      awaits_ = false;  // until it looks again
    }
    state_.steps = num_steps_;
    state_.counts = counts;
    state_.version = engine_.version();
    state_.without_token = std::move(without_token);
    changes = !finished.empty() || runs_ != engine_.running();
    runs_ = engine_.running();
    for (data::Group& group : finished) finished_.emplace_back(state_.num_ended++, std::move(group));
  }
  if (changes) changed_.notify_all();
}

}  // namespace tandem::rollout
