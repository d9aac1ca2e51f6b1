// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages from one rank to another. A lane is a group of two of its own with one direction, so that two ranks may send to each
// other first, and messages pass collectives. The libraries know no tags: each message is led by its tag and size.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/comm/backend/c10d/job.h"

namespace tandem::comm {

/// Bytes of the device at an address, as a tensor that shares them.
at::Tensor device_bytes(void* data, int64_t count, at::Device device);
/// The bytes of a contiguous tensor, as a tensor that shares them.
at::Tensor as_bytes(const at::Tensor& tensor);

/// The sending end.
///
/// Ownership  copies of the messages until they are taken; a thread that the destructor joins: with the first message of a lane
///            a library waits for the peer.
/// Threads    any.
/// Blocking   put until the copy is made; check_delivered.
/// Errors     what goes wrong in the thread ends the job.
class Outbox {
 public:
  Outbox(C10dJob& job, std::string lane);
  ~Outbox();

  /// place: how errors name the message.
  void put(const at::Tensor& tensor, int tag, const std::string& place);
  /// Errors: PeerError if nobody takes a message within a moment; for the end of the job.
  void check_delivered();

 private:
  struct Message {
    at::Tensor bytes;
    int tag;
    std::string place;
  };
  void loop();
  void deliver(::c10d::Backend& backend, const Message& message);

  C10dJob& job_;
  const std::string lane_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  bool ends_ = false;
  std::thread thread_;
};

/// The receiving end.
///
/// Ownership  messages that arrived before the one asked for.
/// Threads    one at a time.
/// Blocking   take, until the message is there; arrived, while a message that has begun to arrive does.
/// Errors     PeerError, also where its size is another.
class Inbox {
 public:
  Inbox(C10dJob& job, const std::string& lane);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  void take(at::Tensor& tensor, int tag, const C10dJob::Wait& wait);
  bool arrived(int tag, const C10dJob::Wait& wait);

 private:
  // What leads the next message: asked for, and perhaps here.
  struct Head {
    std::vector<at::Tensor> tensors;
    c10::intrusive_ptr<::c10d::Work> work;
  };
  Head& head();
  void meet(const C10dJob::Wait& wait);
  std::pair<int, int64_t> read_head(const C10dJob::Wait& wait);
  void keep(int tag, int64_t bytes, const C10dJob::Wait& wait);

  C10dJob& job_;
  const std::string lane_;
  const c10::intrusive_ptr<::c10d::Backend> backend_;
  const at::Device device_;
  bool has_met_ = false;
  std::optional<Head> head_;
  std::map<int, std::deque<at::Tensor>> kept_;  // by tag
};

}  // namespace tandem::comm
