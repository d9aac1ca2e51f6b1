// SPDX-License-Identifier: Apache-2.0
#pragma once
// Generation that never waits for training: groups of an engine, on a thread of its own. What the stream is told takes effect between two
// tokens, in the order in which it was told.
//
//   owner      admit, cancel, switch_weights --.                 take_finished, state
//                                              v                       ^
//   thread     ... token, [what it was told], token, token, ... finished groups

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/data/decisions.h"
#include "tandem/rollout/group/group_assembly.h"

namespace tandem::rollout {

/// How things stood after some token step.
struct StreamState {
  int64_t steps = 0;                         ///< token steps since the start
  EngineCounts counts;
  std::optional<data::PolicyVersion> version;  ///< of the weights it generates with
  std::vector<data::GroupId> without_token;  ///< also those it was told of since. Their first token will be of `version` or a later one.
  double idle_s = 0;                         ///< for which it had no sequence to run, since the start
  int64_t num_ended = 0;   ///< groups since the start; on ranks that draw the same tokens one may have a few more than another just now
  bool is_busy = false;    ///< a sequence runs, something it was told is not in effect yet, or a finished group was not taken
  bool awaits = false;     ///< it follows another, has given all it had, and waits to be told what that was told
  std::map<data::GroupId, int64_t> unfinished_tokens;  ///< while it is paused: GroupAssembly::num_tokens
};

/// What a stream follows: what took effect in a stream before, in that order.
class FollowedEffects {
 public:
  explicit FollowedEffects(std::optional<std::vector<data::Effect>> effects) : effects_(std::move(effects)) {}
  /// Whether the next one comes later than token step `step`. False where there is none. Errors: UserError if it is none of `kind`.
  bool is_early(data::Effect::Kind kind, int64_t step) const;
  /// Whether the next one comes before the token of `step`.
  bool is_due(int64_t step) const { return effects_ && next_ < effects_->size() && (*effects_)[next_].step <= step; }
  bool any() const { return effects_.has_value(); }
  void advance() { ++next_; }

 private:
  std::optional<std::vector<data::Effect>> effects_;
  size_t next_ = 0;
};

/// Ranks that a stream keeps step with. Only its thread may use these groups until the stream is gone or paused.
struct StreamPeers {
  std::vector<comm::Group*> alike;   ///< its tp and pp groups: they draw the same tokens, and are told the same
  comm::Group* experts = nullptr;    ///< those that share experts: all take a token step together, under the same weights
  double deadline_s = 600;           ///< for which the owner waits until something that it told takes effect
};

/// Ownership  uses the engine, which nobody else may touch but between pause() and resume().
/// Threads    owns and joins its thread; told and asked by one other thread. On ranks that draw the same tokens the same calls are made in
///            the same order, and take effect before the same token. Ranks that share experts switch and pause before the same token.
/// Blocking   pause() for a token step, wait_switched() until the last switch is in effect; longer where it follows another. Both at most
///            the deadline, then PeerError. Nothing else waits for the engine.
/// Errors     what the engine threw, or the admission of a group, by the next call of any function; the stream has ended then. UserError
///            so for a replay that is told something else than what it follows.
/// Read next  docs/design/free_mode.md
class Stream {
 public:
  /// With `effects`, those of a stream before, what it is told takes effect before the same tokens as there: the stream waits for it.
  /// All peers follow some, or none does.
  explicit Stream(Engine& engine, StreamPeers peers = {}, std::optional<std::vector<data::Effect>> effects = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void admit(GroupRequest request);
  void cancel(data::GroupId group);
  /// As Engine::switch_weights. The values before must stay as they are until state() has this version.
  void switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version);
  /// Returns between two tokens; then the owner may use the engine until resume(). With kStand a replay stands before the same token.
  void pause(std::optional<data::Effect::Kind> kind = {});
  void resume();
  /// What GroupAssembly::take_out gives of these; if they go `on_here`, too, GroupAssembly::so_far. Requires that it is paused.
  std::vector<data::Group> take_out(const std::vector<data::GroupId>& groups, bool on_here = false);
  /// Returns when the last switch that it was told is in effect.
  void wait_switched() const;

  /// Of the first `most` that ended those that no call took and no cancel() removed, in the order they ended.
  std::vector<data::Group> take_finished(int64_t most = std::numeric_limits<int64_t>::max());
  /// Waits until a group is finished, nothing is left to run, or the deadline. Returns whether a group is finished.
  bool wait_finished(const Deadline& deadline) const;
  StreamState state() const;
  /// What took effect since the last call, without pauses: what a replay needs.
  std::vector<data::Effect> take_effects();

 private:
  struct Told {
    std::function<void()> act;
    std::optional<data::Effect::Kind> kind = {};     // none: a pause that no replay repeats
    std::optional<data::GroupId> without_token = {};  // which it admits
    std::optional<data::GroupId> cancels = {};
    /// Whether ranks that share experts must be told it alike.
    bool is_for_all() const { return !kind || kind == data::Effect::Kind::kSwitch || kind == data::Effect::Kind::kStand; }
  };
  void tell(Told told);
  void check_fault() const;
  void work();
  bool obey_until_pause();
  int64_t num_due();
  bool must_await();
  void rest();
  void publish(const Told* obeyed = nullptr);
  void wait_for(const char* what, const std::function<bool()>& is_so, std::unique_lock<std::mutex>& lock) const;

  Engine& engine_;
  const StreamPeers peers_;
  FollowedEffects followed_;         // the thread's, as all down to the mutex
  GroupAssembly groups_;
  int64_t num_obeyed_ = 0, num_for_all_ = 0, num_steps_ = 0;  // things in effect, those of them for all peers, and token steps
  bool is_to_pause_ = false;

  mutable std::mutex mutex_;         // guards what follows
  mutable std::condition_variable changed_;
  std::deque<Told> told_;            // not in effect yet
  int64_t num_told_ = 0, num_switches_ = 0;  // the latter: told and not in effect
  bool is_paused_ = false, is_closing_ = false, runs_ = false, awaits_ = false;
  std::deque<std::pair<int64_t, data::Group>> finished_;  // each with the number that had ended before it
  std::vector<data::Effect> effects_;
  StreamState state_;
  double rests_since_s_ = 0;         // 0: it does not
  std::exception_ptr fault_;
  std::thread thread_;               // last: it uses all the others
};

}  // namespace tandem::rollout
