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
#include <mutex>
#include <thread>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/rollout/group_assembly.h"

namespace tandem::rollout {

/// How things stood after some token step.
struct StreamState {
  int64_t steps = 0;                         ///< token steps since the start
  EngineCounts counts;
  std::optional<data::PolicyVersion> version;  ///< of the weights it generates with
  std::vector<data::GroupId> without_token;  ///< GroupAssembly::without_token. Their first token will be of `version` or of a later one.
  double idle_s = 0;                         ///< for which it had no sequence to run, since the start
};

/// Ownership  uses the engine, which nobody else may touch but between pause() and resume().
/// Threads    owns and joins its thread; told and asked by one other thread. On ranks that make the same tokens (`peers`) the same
///            calls are made in the same order; what they say takes effect before the same token on all of them.
/// Blocking   pause() for a token step. Nothing else waits for the engine.
/// Errors     what the engine threw, or the admission of a group, by the next call of any function; the stream has ended then.
/// Read next  docs/design/free_mode.md
class Stream {
 public:
  /// `peers`: its tp and pp groups, and the ranks that share experts; only the thread may use them until the stream is gone or paused.
  explicit Stream(Engine& engine, std::vector<comm::Group*> peers = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void admit(GroupRequest request);
  void cancel(data::GroupId group);
  /// As Engine::switch_weights. The values before must stay as they are until state() has this version.
  void switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version);
  /// Returns between two tokens; then the owner may use the engine until resume().
  void pause();
  void resume();
  /// Returns when all it was told is in effect.
  void wait_obeyed() const;

  /// Groups that ended since the last call, in the order they ended.
  std::vector<data::Group> take_finished();
  /// Waits until a group is finished, nothing is left to run, or the deadline. Returns whether a group is finished.
  bool wait_finished(const Deadline& deadline) const;
  /// Whether a sequence runs, something it was told is not in effect yet, or a finished group was not taken.
  bool busy() const;
  StreamState state() const;
  /// The token step before which each thing it was told took effect, since the last call: what a replay needs.
  std::vector<int64_t> take_effects();

 private:
  using Told = std::function<void()>;
  void tell(Told told);
  void check_fault() const;
  void work();
  bool obey();
  void rest();
  void publish(int64_t num_steps);

  Engine& engine_;
  const std::vector<comm::Group*> peers_;
  GroupAssembly groups_;             // the thread's, as the engine is
  int64_t num_obeyed_ = 0;           // the thread's
  bool is_to_pause_ = false;         // the thread's

  mutable std::mutex mutex_;         // guards what follows
  mutable std::condition_variable changed_;
  std::deque<Told> told_;            // not in effect yet
  int64_t num_told_ = 0;
  bool is_paused_ = false, is_closing_ = false, runs_ = false;
  std::vector<data::Group> finished_;
  std::vector<int64_t> effects_;
  StreamState state_;
  std::exception_ptr fault_;
  std::thread thread_;               // last: it uses all the others
};

}  // namespace tandem::rollout
