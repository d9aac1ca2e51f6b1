// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/backend/wire/server.h"

#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue::wire {
namespace {

constexpr double kCallPauseS = 0.05;  // for which it waits for a call
constexpr double kLookS = 0.05;       // between two looks for clients that are gone

}  // namespace

Server::Server(Desk& desk, std::mutex& mutex, const std::string& address, const std::optional<comm::ServerKeys>& keys)
    : desk_(desk), mutex_(mutex), endpoint_(comm::Endpoint::at(address, keys)), thread_([this] { serve(); }) {}

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

// Clients are taken for dead at a time by which all that had come was answered. Under a load that never lets up nobody is.
void Server::serve() {
  double looked_s = 0;
  try {
    while (!is_closing_) {
      std::optional<comm::Letter> letter = endpoint_.receive(0);
      if (!letter) {
        if (now_s() - looked_s > kLookS) {
          std::lock_guard lock(mutex_);
          desk_.expire(looked_s = now_s());
        }
        letter = endpoint_.receive(kCallPauseS);
      }
      if (letter) answer(std::move(*letter));
    }
  } catch (...) {
    std::lock_guard lock(counts_mutex_);
    fault_ = std::current_exception();
  }
}

void Server::answer(comm::Letter letter) {
  std::optional<Call> call;
  try {
    call = call_of(letter.bytes);
  } catch (const std::exception&) {  // also for want of memory
  }
  {
    std::lock_guard lock(counts_mutex_);
    ++(call ? counts_.calls : counts_.unreadable);
    counts_.bytes += std::ssize(letter.bytes);
  }
  if (!call) return;
  std::optional<Answer> answer;
  {
    std::lock_guard lock(mutex_);
    answer = desk_.answer(*call, now_s());
  }
  if (answer) endpoint_.send({std::move(letter.peer), to_bytes(*answer)});
}

}  // namespace tandem::queue::wire
