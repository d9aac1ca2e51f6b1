// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_device/queue.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/device/fault.h"
#include "tandem/device/process.h"

namespace tandem::device::fake {
namespace {

constexpr int kPoison = 0xFF;                      // NaN in every float, -1 in every integer
constexpr size_t kMostRetiredBytes = 64 << 20, kAlignment = 64;

// As libtorch does for a device whose driver reports it.
[[noreturn]] void throw_fault(const std::string& what) {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 1, "fake device: " + what);
}

}  // namespace

Queue::~Queue() {
  for (const auto& [memory, bytes] : retired_) std::free(memory);
}

Room::~Room() {
  for (const auto& [memory, bytes] : whole_) {
    queue_.give_bytes(static_cast<int64_t>(bytes));
    std::free(memory);
  }
}

// The smallest range that is long enough, or else new memory.
void* Room::take(size_t wanted) {
  const size_t bytes = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard lock(mutex_);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  if (best == free_.end()) {
    if (!queue_.take_bytes(static_cast<int64_t>(bytes))) return nullptr;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
    if (!memory) return queue_.give_bytes(static_cast<int64_t>(bytes)), nullptr;
    whole_[memory] = bytes;
    best = free_.emplace(memory, bytes).first;
  }
  const auto [memory, size] = *best;
  free_.erase(best);
  if (size > bytes) free_[memory + bytes] = size - bytes;
  taken_[memory] = bytes;
  return memory;
}

// It becomes one with what is free beside it, as far as the system gave them together.
void Room::give(void* memory) {
  std::lock_guard lock(mutex_);
  const auto taken = taken_.find(static_cast<std::byte*>(memory));
  TANDEM_CHECK(taken != taken_.end(), "memory of another room");
  auto it = free_.insert(*taken).first;
  taken_.erase(taken);
  if (const auto next = std::next(it); next != free_.end() && next->first == it->first + it->second && !whole_.contains(next->first)) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin() || whole_.contains(it->first)) return;
  if (const auto before = std::prev(it); before->first + before->second == it->first) {
    before->second += it->second;
    free_.erase(it);
  }
}

Kept::~Kept() {
  for (void* each : memory) std::free(each);
}

void Kept::run() const {
  for (const std::function<void()>& each : work) each();
}

void Queue::push(const char* what, std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (most_pieces_ > 0 && ++num_pieces_ > most_pieces_ && fault_.empty()) fault_ = "it is lost";
  if (captures_here()) return capture_->work.push_back(std::move(work));
  entries_.push_back({what, std::move(work)});
  ++num_pushed_;
}

void Queue::bound(int64_t most_pieces, int64_t most_bytes) {
  std::lock_guard lock(mutex_);
  most_pieces_ = most_pieces;
  most_bytes_ = most_bytes;
}

bool Queue::take_bytes(int64_t bytes) {
  const int64_t most = most_bytes_;
  if (taken_bytes_.fetch_add(bytes) + bytes <= most || most == 0) return true;
  taken_bytes_ -= bytes;
  return false;
}

void Queue::compute_as_here() {
  const int here = at::get_num_threads();
  std::lock_guard lock(mutex_);
  threads_ = here;
}

void Queue::fail(const std::string& what) {
  std::lock_guard lock(mutex_);
  if (fault_.empty()) fault_ = what;
}

void Queue::run(const Entry& entry) {
  try {
    entry.work();
  } catch (const std::exception& e) {
    fail(join_text(entry.what, ": ", without_backtrace(e)));
  }
}

void Queue::free(void* memory, size_t bytes, Room* room) {
  {
    std::lock_guard lock(mutex_);
    results_.erase(memory);
    if (room) return room->give(memory);
    if (captures_here()) return capture_->memory.push_back(memory);
  }
  push("free", [this, memory, bytes] { retire(memory, bytes); });
}

void Queue::made(void* memory, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (captures_here()) results_[memory] = {capture_.get(), room_.get(), bytes};
}

void Queue::poison_others(const Kept& but, const Room& room) {
  std::lock_guard lock(mutex_);
  for (const auto& [memory, result] : results_)
    if (result.room == &room && result.of != &but) std::memset(memory, kPoison, result.bytes);
}

void Queue::begin_capture(std::shared_ptr<Room> room) {
  std::unique_lock lock(mutex_);
  is_free_.wait(lock, [&] { return !capture_; });
  capture_ = std::make_shared<Kept>();
  capturer_ = std::this_thread::get_id();
  room_ = std::move(room);
  ++num_captures_;
}

std::shared_ptr<const Kept> Queue::end_capture() {
  std::unique_lock lock(mutex_);
  is_free_.notify_all();
  const std::shared_ptr<Room> room = std::exchange(room_, nullptr);
  std::shared_ptr<const Kept> kept = std::exchange(capture_, nullptr);
  lock.unlock();  // the room may be gone with it
  return kept;
}

std::shared_ptr<Room> Queue::room() {
  std::lock_guard lock(mutex_);
  return captures_here() ? room_ : nullptr;
}

int64_t Queue::num_pushed() {
  std::lock_guard lock(mutex_);
  return num_pushed_;
}

void Queue::drain_until(int64_t end) {
  if (is_capturing()) throw_fault("what is captured must not wait for the device");
  std::optional<ThreadLimit> limit;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!fault_.empty()) throw_fault(fault_);
    if (num_done_ >= end || (entries_.empty() && !is_running_)) return;
    if (is_running_) {
      progress_.wait(lock);
      continue;
    }
    Entry next = std::move(entries_.front());
    entries_.pop_front();
    is_running_ = true;
    if (!limit && threads_ > 0 && threads_ != at::get_num_threads()) limit.emplace(threads_);
    lock.unlock();
    run(next);
    next.work = nullptr;  // it may free memory of the device
    lock.lock();
    is_running_ = false;
    ++num_done_;
    progress_.notify_all();
  }
}

void Queue::retire(void* memory, size_t bytes) {
  std::memset(memory, kPoison, bytes);
  std::lock_guard lock(mutex_);
  retired_.emplace_back(memory, bytes);
  retired_bytes_ += bytes;
  for (; retired_bytes_ > kMostRetiredBytes && retired_.size() > 1; retired_.pop_front()) {
    retired_bytes_ -= retired_.front().second;
    std::free(retired_.front().first);
  }
}

Queue& queue_of(int index) {
  static std::array<Queue, kMostDevices> queues;
  return queues[static_cast<size_t>(index)];
}

}  // namespace tandem::device::fake
