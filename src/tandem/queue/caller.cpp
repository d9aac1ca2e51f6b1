// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/caller.h"

#include "tandem/base/check.h"

namespace tandem::queue {

const Call& Caller::begin_join() {
  TANDEM_CHECK(!call_, "a client joins while it calls");
  joined_ = false;
  return call_.emplace(Call{incarnation_, worker_, next_join_++, says_, key_});
}

const Call& Caller::begin(decltype(Call::verb) verb) {
  TANDEM_CHECK(joined_ && !call_, "a client calls that has not joined, or that waits for an answer");
  return call_.emplace(Call{incarnation_, worker_, ++num_calls_, std::move(verb), key_});
}

std::optional<decltype(Answer::what)> Caller::take(const Answer& answer) {
  if (!call_ || answer.number != call_->number) return std::nullopt;
  const bool joins = std::holds_alternative<call::Join>(call_->verb);
  const auto* joined = std::get_if<answer::Joined>(&answer.what);
  const bool is_of_any = std::holds_alternative<answer::Refused>(answer.what) || std::holds_alternative<answer::Ended>(answer.what);
  if (joins != (joined != nullptr) && !is_of_any) return std::nullopt;
  // From a controller that is gone, by a detour.
  if (answer.incarnation < incarnation_) return std::nullopt;
  call_.reset();
  if (joined) {
    joined_ = true;
    worker_ = joined->worker;
    incarnation_ = answer.incarnation;
  }
  if (std::holds_alternative<answer::JoinAgain>(answer.what)) joined_ = false;
  if (std::holds_alternative<answer::Ended>(answer.what)) joined_ = false, ended_ = true;
  return answer.what;
}

}  // namespace tandem::queue
