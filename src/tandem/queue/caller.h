// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's half of the talk with a desk, whatever carries it: one call at a time, sent again until its answer comes. A value with rules.
//
//   call = caller.begin(verb)      send it; again whenever no answer came for a while
//   caller.take(answer)            what the verb gave; nothing for an answer to something else
//
// After answer::JoinAgain the client is a new one: it has no leases, and what it holds of the weights may be of a history that is gone.

#include <optional>
#include <string>
#include <utility>

#include "tandem/queue/message.h"

namespace tandem::queue {

class Caller {
 public:
  /// Its joins have the numbers `first_join`, `first_join` + 1 ...: no other client may have one of them, or know `key`.
  Caller(call::Join says, int64_t first_join, ClientKey key = {}) : says_(std::move(says)), key_(key), next_join_(first_join) {}

  bool has_joined() const { return joined_; }
  /// Whether it heard that the run is over.
  bool has_ended() const { return ended_; }
  Incarnation incarnation() const { return incarnation_; }
  /// Who it is; 0 before it has joined.
  WorkerId worker() const { return worker_; }
  /// Requires that no call is under way.
  const Call& begin_join();
  /// Requires that it has joined, and that no call is under way.
  const Call& begin(decltype(Call::verb) verb);
  /// The one under way.
  const std::optional<Call>& under_way() const { return call_; }
  /// No answer is awaited any more. What the call was to do may be done or not.
  void abandon() { call_.reset(); }
  /// Ends the call under way, if this is its answer.
  std::optional<decltype(Answer::what)> take(const Answer& answer);

 private:
  const call::Join says_;
  const ClientKey key_;
  int64_t next_join_;
  bool joined_ = false, ended_ = false;
  Incarnation incarnation_{-1};
  WorkerId worker_{};
  int64_t num_calls_ = 0;  // it goes on behind a join, so that late answers are known as such
  std::optional<Call> call_;
};

}  // namespace tandem::queue
