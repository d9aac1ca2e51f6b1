// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/backend/wire/server.h"

#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue::wire {
namespace {

constexpr double kCallPauseS = 0.05;  // for which it waits for a call
constexpr double kLookS = 0.05;       // between two looks for clients that are gone
constexpr double kBusyLookS = 10;     // where calls never let up: and for so long one may lie unread

}  // namespace

Server::Server(Desk& desk, std::mutex& mutex, const std::string& address, const comm::ServerKeys& keys)
    : desk_(desk), mutex_(mutex), endpoint_(comm::Endpoint::at(address, keys)), token_(keys.public_key), thread_([this] { serve(); }) {}

Server::~Server() {
  is_closing_ = true;
  thread_.join();
}

std::exception_ptr Server::fault() const {
  std::lock_guard lock(fault_mutex_);
  return fault_;
}

// A client is dead that was silent at a time by which all calls had been answered. Under a load that never lets up such a time is some
// seconds ago.
void Server::serve() {
  double looked_s = 0;
  try {
    while (!is_closing_) {
      std::optional<comm::Letter> letter = endpoint_.receive(0);
      if (const double now = now_s(); now - looked_s > (letter ? kBusyLookS : kLookS)) {
        std::lock_guard lock(mutex_);
        desk_.expire((looked_s = now) - (letter ? kBusyLookS : 0));
      }
      if (!letter) letter = endpoint_.receive(kCallPauseS);
      if (letter) answer(std::move(*letter));
    }
  } catch (...) {
    std::lock_guard lock(fault_mutex_);
    fault_ = std::current_exception();
  }
}

// A call that is too long is not unpacked: who made it hears so, and is named. So one of another version of Tandem.
void Server::answer(comm::Letter letter) {
  std::optional<Call> call;
  bool is_whole = false;
  try {
    call = head_of(letter.bytes);
    is_whole = std::ssize(letter.bytes) <= desk_.most_call_bytes() && is_of_this_version(letter.bytes);
    if (is_whole) call = call_of(letter.bytes);
  } catch (const std::exception&) {  // also for want of memory
    call.reset();
  }
  if (!call) return;
  const Origin from{letter.peer, letter.host};
  std::optional<Answer> answer;
  {
    std::lock_guard lock(mutex_);
    if (is_whole) answer = desk_.answer(*call, now_s(), from);
    else if (is_of_this_version(letter.bytes)) answer = desk_.refuse_long(*call, std::ssize(letter.bytes), from);
    else answer = Answer{desk_.incarnation(), call->number, {}, answer::Refused{"another version of Tandem called: the run's is needed"}};
  }
  if (!answer) return;
  std::vector<std::byte> bytes = to_bytes(*answer);
  if (std::ssize(bytes) > comm::kMaxMessageBytes) {
    answer->what = answer::Refused{join_text("the answer has ", bytes.size(), " bytes, of at most ", comm::kMaxMessageBytes)};
    bytes = to_bytes(*answer);
  }
  endpoint_.send({std::move(letter.peer), std::move(bytes)});
}

}  // namespace tandem::queue::wire
