// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/c10d/outbox.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::comm {
namespace {

constexpr double kTaken_s = 2;  // after the last rank has ended, a message that is being taken needs no longer
constexpr int kSender = 0, kReceiver = 1;

at::Tensor empty_bytes(int64_t bytes, at::Device device) { return at::empty({bytes}, at::device(device).dtype(at::kByte)); }

/// The copy of a message is made on the caller's stream, and sent on that of the thread.
void wait_for_stream(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace

at::Tensor device_bytes(void* data, int64_t count, at::Device device) {
  // Named twice, the device is not looked up by the address, which may be null where there are no bytes.
  return at::for_blob(data, {count}).options(at::device(device).dtype(at::kByte)).target_device(device).make_tensor();
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return device_bytes(tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), tensor.device());
}

Outbox::Outbox(C10dJob& job, std::string lane) : job_(job), lane_(std::move(lane)), thread_([this] { loop(); }) {}

Outbox::~Outbox() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Outbox::put(const at::Tensor& tensor, int tag, const std::string& place) {
  at::Tensor bytes = empty_bytes(static_cast<int64_t>(tensor.nbytes()), tensor.device());
  if (tensor.nbytes() > 0) bytes.copy_(as_bytes(tensor));
  wait_for_stream(tensor.device());
  {
    std::lock_guard lock(mutex_);
    messages_.push_back({std::move(bytes), tag, place});
  }
  changed_.notify_all();
}

void Outbox::check_delivered() {
  std::unique_lock lock(mutex_);
  const Deadline deadline = Deadline::after_s(kTaken_s);
  if (!changed_.wait_until(lock, deadline.time(), [&] { return messages_.empty(); }))
    throw PeerError(messages_.front().place + ": nobody took the message");
}

void Outbox::loop() {
  c10::intrusive_ptr<::c10d::Backend> backend;
  std::string place = lane_;
  try {
    job_.library().enter_thread();
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !messages_.empty(); });
      if (messages_.empty()) return;
      const Message message = messages_.front();  // stays in the queue until it is taken
      lock.unlock();
      place = message.place;
      if (!backend) {
        backend = job_.connect(lane_, kSender, 2);
        job_.meet(lane_, 2, {place, {}, false});
      }
      deliver(*backend, message);
      lock.lock();
      messages_.pop_front();
      changed_.notify_all();
    }
  } catch (const std::exception& e) {
    job_.abort(join_text(place, ": ", e.what()));
  }
}

void Outbox::deliver(::c10d::Backend& backend, const Message& message) {
  const C10dJob::Wait wait{message.place, {}, false};
  at::Tensor head = at::empty({2}, at::kLong);
  head.mutable_data_ptr<int64_t>()[0] = message.tag;
  head.mutable_data_ptr<int64_t>()[1] = message.bytes.numel();
  for (const at::Tensor& part : {head.to(job_.library().device), message.bytes}) {
    if (part.numel() == 0) continue;
    std::vector<at::Tensor> parts = {part};
    job_.finish(*backend.send(parts, kReceiver, 0), wait);
  }
}

Inbox::Inbox(C10dJob& job, const std::string& lane)
    : job_(job), lane_(lane), backend_(job.connect(lane, kReceiver, 2)), device_(job.library().device) {}

Inbox::~Inbox() { job_.disconnect(backend_); }

void Inbox::meet(const C10dJob::Wait& wait) {
  if (!std::exchange(has_met_, true)) job_.meet(lane_, 2, wait);
}

Inbox::Head& Inbox::head() {
  if (head_) return *head_;
  head_.emplace().tensors = {at::empty({2}, at::device(device_).dtype(at::kLong))};
  head_->work = backend_->recv(head_->tensors, kSender, 0);
  return *head_;
}

// Tag and bytes of the next message.
std::pair<int, int64_t> Inbox::read_head(const C10dJob::Wait& wait) {
  job_.finish(*head().work, wait);
  const at::Tensor read = head_->tensors[0].cpu();
  head_.reset();
  return {static_cast<int>(read.const_data_ptr<int64_t>()[0]), read.const_data_ptr<int64_t>()[1]};
}

void Inbox::keep(int tag, int64_t bytes, const C10dJob::Wait& wait) {
  std::vector<at::Tensor> parts = {empty_bytes(bytes, device_)};
  if (bytes > 0) job_.finish(*backend_->recv(parts, kSender, 0), wait);
  kept_[tag].push_back(parts[0]);
}

bool Inbox::arrived(int tag, const C10dJob::Wait& wait) {
  while (kept_[tag].empty()) {
    if (!has_met_ && !job_.has_come(lane_)) return false;  // nobody has sent yet
    meet(wait);
    if (!head().work->isCompleted()) return false;
    const auto [of_tag, bytes] = read_head(wait);
    keep(of_tag, bytes, wait);
  }
  return true;
}

void Inbox::take(at::Tensor& tensor, int tag, const C10dJob::Wait& wait) {
  const auto expected = static_cast<int64_t>(tensor.nbytes());
  at::Tensor whole = as_bytes(tensor);
  std::deque<at::Tensor>& kept = kept_[tag];
  if (kept.empty()) meet(wait);
  while (kept.empty()) {
    const auto [of_tag, bytes] = read_head(wait);
    if (of_tag != tag || bytes != expected) {
      keep(of_tag, bytes, wait);
      continue;
    }
    std::vector<at::Tensor> parts = {whole};
    if (bytes > 0) job_.finish(*backend_->recv(parts, kSender, 0), wait);
    return;
  }
  const at::Tensor bytes = kept.front();
  kept.pop_front();
  if (bytes.numel() != expected)
    throw PeerError(join_text(wait.place, " with rank ", wait.peers[0], ": the message has ", bytes.numel(), " bytes, not the ", expected,
                              " expected"));
  if (expected > 0) whole.copy_(bytes);
}

}  // namespace tandem::comm
