// SPDX-License-Identifier: Apache-2.0
#pragma once
// A library of c10d for the CPU and for fake devices, in place of NCCL: bytes travel through the store. As with NCCL, tags mean nothing,
// and the work of a send is done when the peer has taken it. A collective on a device goes on beside the device's queue, from its place
// there on: who reads its results without having the queue wait finds what was there before.

#include <ATen/ops/empty.h>

#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tandem/comm/backend/c10d/library.h"
#include "tandem/comm/reduce.h"
#include "tests/fake_device/queue.h"
#include "tandem/device/device.h"

namespace tandem::comm::suite {

class StoreWork : public ::c10d::Work {
 public:
  StoreWork(std::shared_ptr<std::atomic<bool>> aborted, std::function<bool()> attempt)
      : aborted_(std::move(aborted)), attempt_(std::move(attempt)) {}
  bool isCompleted() override { return *aborted_ || is_done_ || (is_done_ = attempt_()); }
  void synchronize() override {}

 private:
  const std::shared_ptr<std::atomic<bool>> aborted_;
  const std::function<bool()> attempt_;
  bool is_done_ = false;
};

// A collective on a fake device.
class DeviceWork : public ::c10d::Work {
 public:
  DeviceWork(std::shared_ptr<std::atomic<bool>> aborted, std::shared_ptr<std::atomic<bool>> done, at::Device device)
      : aborted_(std::move(aborted)), done_(std::move(done)), device_(device) {}
  bool isCompleted() override { return *aborted_ || *done_; }
  void synchronize() override {
    device::fake::queue_of(device_.index()).push("a wait for a collective", [aborted = aborted_, done = done_] {
      while (!*aborted && !*done) usleep(100);
    });
  }

 private:
  const std::shared_ptr<std::atomic<bool>> aborted_, done_;
  const at::Device device_;
};

// What a device does beside its queue: one after the other, on a thread of its own.
class Lane {
 public:
  ~Lane() {
    post(nullptr);
    thread_.join();
  }
  void post(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !work_.empty(); });
      const auto next = std::move(work_.front());
      work_.pop_front();
      if (!next) return;
      lock.unlock();
      next();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_{[this] { run(); }};
};

class StoreBackend : public ::c10d::Backend {
 public:
  using Blob = std::vector<uint8_t>;
  using Started = c10::intrusive_ptr<::c10d::Work>;
  using Take = std::function<void(const std::vector<Blob>& by_rank)>;

  StoreBackend(const Place& place, at::Device device) : Backend(place.rank, place.size), store_(place.store), device_(device) {
    if (!device.is_cpu()) lane_ = std::make_unique<Lane>();
  }
  ~StoreBackend() override {
    *aborted_ = true;
    lane_.reset();
  }
  void abort() override { *aborted_ = true; }

  Started broadcast(std::vector<at::Tensor>& tensors, const ::c10d::BroadcastOptions& options) override {
    return exchange(to_all(tensors[0]), [t = tensors[0], root = options.rootRank](const auto& all) { fill(t, all[root], 0); });
  }
  Started allreduce(std::vector<at::Tensor>& tensors, const ::c10d::AllreduceOptions& options) override {
    const ReduceOp op = options.reduceOp == ::c10d::ReduceOp::SUM ? ReduceOp::kSum : ReduceOp::kMax;
    return exchange(to_all(tensors[0]), [t = tensors[0], op](const auto& all) { reduce(t, all, op); });
  }
  Started _allgather_base(at::Tensor& out, at::Tensor& in, const ::c10d::AllgatherOptions&) override {
    return exchange(to_all(in), [out](const auto& all) {
      for (size_t r = 0; r < all.size(); ++r) fill(out, all[r], r * all[r].size());
    });
  }
  Started _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const ::c10d::ReduceScatterOptions&) override {
    std::vector<at::Tensor> blocks;
    for (int r = 0; r < size_; ++r) blocks.push_back(in.narrow(0, r * out.numel(), out.numel()));
    return exchange(blocks, [out](const auto& all) { reduce(out, all, ReduceOp::kSum); });
  }
  Started alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>&, std::vector<int64_t>& in_sizes,
                        const ::c10d::AllToAllOptions&) override {
    std::vector<at::Tensor> blocks;
    int64_t begin = 0;
    for (int64_t n : in_sizes) blocks.push_back(in.narrow(0, begin, n)), begin += n;
    return exchange(blocks, [out](const auto& all) {
      size_t at = 0;
      for (const Blob& block : all) fill(out, block, at), at += block.size();
    });
  }
  Started send(std::vector<at::Tensor>& tensors, int, int) override {
    const std::string key = "message/" + std::to_string(num_sent_++);
    device::synchronize(device_);
    store_->set(key, blob(tensors[0]));
    return work([this, key] { return !store_->check({key}); });
  }
  Started recv(std::vector<at::Tensor>& tensors, int, int) override {
    const std::string key = "message/" + std::to_string(num_received_++);
    return work([this, key, t = tensors[0]] {
      if (!store_->check({key})) return false;
      device::synchronize(device_);
      fill(t, store_->get(key), 0);
      store_->deleteKey(key);
      return true;
    });
  }

 private:
  // The memory of a fake device is the host's.
  static Blob blob(const at::Tensor& t) {
    const auto* data = static_cast<const uint8_t*>(t.const_data_ptr());
    return Blob(data, data + t.nbytes());
  }
  static void fill(const at::Tensor& to, const Blob& from, size_t at) {
    ASSERT_LE(at + from.size(), to.nbytes());
    if (!from.empty()) std::memcpy(static_cast<uint8_t*>(to.mutable_data_ptr()) + at, from.data(), from.size());
  }
  static void reduce(const at::Tensor& to, const std::vector<Blob>& all, ReduceOp op) {
    std::vector<const void*> sources;
    for (const Blob& b : all) sources.push_back(b.data());
    void* const out[] = {to.mutable_data_ptr()};
    reduce_ordered(sources, out, to.numel(), to.scalar_type(), op);
  }
  std::vector<at::Tensor> to_all(const at::Tensor& t) const { return std::vector<at::Tensor>(static_cast<size_t>(size_), t); }

  /// Block r goes to rank r.
  Started exchange(const std::vector<at::Tensor>& blocks, Take take) {
    const std::string op = std::to_string(num_collectives_++) + "/";
    std::vector<std::string> keys;
    for (int r = 0; r < size_; ++r) keys.push_back(op + std::to_string(r) + ">" + std::to_string(rank_));
    const auto bring = [this, op, blocks] {
      for (int r = 0; r < size_; ++r)
        store_->set(op + std::to_string(rank_) + ">" + std::to_string(r), blob(blocks[static_cast<size_t>(r)]));
    };
    const auto attempt = [this, keys, take = std::move(take)] {
      if (!store_->check(keys)) return false;
      std::vector<Blob> all;
      for (const std::string& key : keys) all.push_back(store_->get(key)), store_->deleteKey(key);
      take(all);
      return true;
    };
    if (!lane_) {
      bring();
      return work(attempt);
    }
    device::fake::Queue& queue = device::fake::queue_of(device_.index());
    const auto done = std::make_shared<std::atomic<bool>>(false);
    lane_->post([this, &queue, done, bring, attempt, place = queue.num_pushed()] {
      try {
        queue.drain_until(place);
        bring();
        while (!*aborted_ && !attempt()) usleep(100);
        *done = true;
      } catch (const std::exception&) {  // the store is gone, or the device: nothing comes, and whoever waits hears of it at the deadline
      }
    });
    return c10::make_intrusive<DeviceWork>(aborted_, done, device_);
  }
  Started work(std::function<bool()> attempt) const { return c10::make_intrusive<StoreWork>(aborted_, std::move(attempt)); }

  const c10::intrusive_ptr<::c10d::Store> store_;
  const at::Device device_;
  std::unique_ptr<Lane> lane_;  // of a device
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  int num_collectives_ = 0, num_sent_ = 0, num_received_ = 0;
};

inline Library store_library(at::Device device = at::kCPU) {
  return {"store", device, [device](const Place& place) { return c10::make_intrusive<StoreBackend>(place, device); },
          [](::c10d::Backend& backend) { backend.abort(); }};
}

}  // namespace tandem::comm::suite
