// SPDX-License-Identifier: Apache-2.0
#pragma once
// A queue in memory for tests: calls are function calls under a mutex, and stores are found by name.

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/queue/desk.h"
#include "tandem/queue/client.h"

namespace tandem::queue {

/// What its clients share.
struct InMemoryQueue {
  InMemoryQueue(const Options& options, double lease_s, Desk::PromptOf prompt_of, std::string welcome = "")
      : controller(options, LeaseTerms{lease_s, Incarnation{0}}),
        desk(controller, Incarnation{0}, "", std::move(prompt_of), std::move(welcome)) {}

  /// The run is over. Returns what clients said that failed with them.
  std::vector<std::string> end() {
    std::lock_guard lock(mutex);
    desk.end();
    return desk.take_failures();
  }

  std::mutex mutex;  // guards all
  Controller controller;
  Desk desk;
  std::map<std::string, const Store*> stores;
  int64_t num_stores_ever = 0;
};

/// Ownership  uses queue and store.
/// Threads    one; each client has its own.
class InMemoryTransport final : public Transport {
 public:
  InMemoryTransport(InMemoryQueue& queue, const Store& own) : queue_(queue) {
    std::lock_guard lock(queue_.mutex);
    own_store_ = join_text("store ", queue_.num_stores_ever++);
    queue_.stores[own_store_] = &own;
  }
  ~InMemoryTransport() override {
    std::lock_guard lock(queue_.mutex);
    queue_.stores.erase(own_store_);
  }

  void send(const Call& call) override {
    std::lock_guard lock(queue_.mutex);
    answer_ = queue_.desk.answer(call, now_s());
    queue_.desk.expire(now_s());
  }
  std::optional<Answer> receive(double) override { return std::exchange(answer_, std::nullopt); }
  bool read(const std::string& store, std::span<const SampleId> samples, TensorCache& into) override {
    std::lock_guard lock(queue_.mutex);
    const auto found = queue_.stores.find(store);
    return found != queue_.stores.end() && found->second->schema() == into.schema() && found->second->copy(samples, into);
  }
  const std::string& own_store() const override { return own_store_; }
  std::string name() const override { return "queue"; }

 private:
  InMemoryQueue& queue_;
  std::string own_store_;
  std::optional<Answer> answer_;
};

}  // namespace tandem::queue
