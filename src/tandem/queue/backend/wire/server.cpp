// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/backend/wire/server.h"

#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue::wire {
namespace {

constexpr double kCallPauseS = 0.05;   // for which it waits for a call before it looks for clients that are gone
constexpr double kLongestS = 5;    // after so long it looks, though calls wait

}  // namespace

Server::Server(Desk& desk, std::mutex& mutex, const std::string& address, const std::optional<ServerKeys>& keys)
    : desk_(desk), mutex_(mutex), endpoint_(Endpoint::at(address, keys)), thread_([this] { serve(); }) {}

Server::~Server() {
  is_closing_ = true;
  thread_.join();
}

ServerCounts Server::counts() const {
  std::lock_guard lock(counts_mutex_);
  return counts_;
}

std::exception_ptr Server::fault() const {
  std::lock_guard lock(counts_mutex_);
  return fault_;
}

// A call that waits is answered before anyone is taken for dead.
void Server::serve() {
  double looked_s = now_s();
  try {
    while (!is_closing_) {
      std::optional<Letter> letter = endpoint_.receive(kCallPauseS);
      if (!letter || now_s() - looked_s > kLongestS) {
        std::lock_guard lock(mutex_);
        desk_.expire(now_s());
        looked_s = now_s();
      }
      if (!letter) continue;
      std::optional<Answer> answer;
      bool is_call = true;
      try {
        const Call call = call_of(letter->bytes);
        std::lock_guard lock(mutex_);
        answer = desk_.answer(call, now_s());
      } catch (const PeerError&) {
        is_call = false;
      }
      {
        std::lock_guard lock(counts_mutex_);
        ++(is_call ? counts_.calls : counts_.unreadable);
        counts_.bytes += std::ssize(letter->bytes);
      }
      if (answer) endpoint_.send({std::move(letter->peer), to_bytes(*answer)});
    }
  } catch (...) {
    std::lock_guard lock(counts_mutex_);
    fault_ = std::current_exception();
  }
}

}  // namespace tandem::queue::wire
