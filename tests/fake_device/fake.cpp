// SPDX-License-Identifier: Apache-2.0
// A device on the processor for tests: all it does, it does late.
#include <c10/util/Exception.h>

#include "tandem/base/check.h"
#include "tests/fake_device/queue.h"
#include "tests/fake_device/register.h"
#include "tests/fake_device/trouble.h"
#include "tandem/device/device.h"
#include "tandem/device/fault.h"
#include "tandem/device/pages.h"

namespace tandem::device {
namespace {

// Pages of the host; to touch those without memory is a fault.
class FakeMemory final : public Memory {
 public:
  FakeMemory(at::Device device, int64_t num_bytes) : queue_(fake::queue_of(device.index())), pages_(pages(num_bytes)) {
    address_ = pages_->address();
    chunk_bytes_ = pages_->chunk_bytes();
  }
  ~FakeMemory() override {
    queue_.give_bytes(backed_bytes_);
    try {
      queue_.drain();
    } catch (const c10::Error&) {  // what failed has been said to who waited
    }
  }
  bool back(int64_t first, int64_t last) override {
    const int64_t bytes = (last - first) * chunk_bytes_;
    if (!queue_.take_bytes(bytes)) return false;
    const bool is_backed = pages_->back(first, last);
    if (is_backed) backed_bytes_ += bytes;
    else queue_.give_bytes(bytes);
    return is_backed;
  }
  bool release(int64_t first, int64_t last) override {
    queue_.drain();
    const int64_t bytes = (last - first) * chunk_bytes_;
    queue_.give_bytes(bytes);
    backed_bytes_ -= bytes;
    return pages_->release(first, last);
  }

 private:
  fake::Queue& queue_;
  std::unique_ptr<Memory> pages_;
  int64_t backed_bytes_ = 0;
};

// What was queued, to be queued again. What the others of its room computed is gone then.
class FakeGraph final : public Graph {
 public:
  FakeGraph(at::Device device, std::shared_ptr<fake::Room> room) : queue_(fake::queue_of(device.index())), room_(std::move(room)) {}
  void capture(const std::function<void()>& work) override {
    try {
      work();
      queue_.drain();
      queue_.begin_capture(room_);
      work();
      kept_ = queue_.end_capture();
    } catch (const std::exception&) {
      if (queue_.is_capturing()) queue_.end_capture();
      throw;
    }
  }
  void replay() override {
    queue_.push("a graph", [&queue = queue_, kept = kept_, room = room_] {
      queue.poison_others(*kept, *room);
      kept->run();
    });
  }

 private:
  fake::Queue& queue_;
  const std::shared_ptr<fake::Room> room_;
  std::shared_ptr<const fake::Kept> kept_;
};

class FakeGraphs final : public Graphs {
 public:
  explicit FakeGraphs(at::Device device) : device_(device) {}
  std::unique_ptr<Graph> make() override {
    std::shared_ptr<fake::Room> room = room_.lock();
    if (!room) room_ = room = std::make_shared<fake::Room>(fake::queue_of(device_.index()));
    return std::make_unique<FakeGraph>(device_, std::move(room));
  }

 private:
  const at::Device device_;
  std::weak_ptr<fake::Room> room_;
};

const Backend kFake = {"fake",
                       at::kPrivateUse1,
                       [] { return fake::can_register() ? fake::num_devices() : 0; },
                       [] {
                         const bool is_taken = !fake::can_register();
                         const char* what =
                             is_taken ? "libtorch's private type of devices is taken" : "TANDEM_FAKE_DEVICE says that there is none";
                         return std::pair<std::string, std::string>(what, "cpu");
                       },
                       [](at::Device device) {
                         fake::register_device();
                         c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
                         fake::queue_of(device.index()).compute_as_here();
                       },
                       [](at::Device device) {
                         try {
                           fake::queue_of(device.index()).drain();
                         } catch (const c10::Error& e) {
                           throw device_failed(device, without_backtrace(e));
                         }
                       },
                       [](at::Device) { return std::string("a fake device: the processor, late"); },
                       [](at::Device device) { return join_text("fake ", fake::first_of_machine() + device.index()); },
                       [](at::Device device, int64_t num_bytes) -> std::unique_ptr<Memory> {
                         fake::register_device();
                         return std::make_unique<FakeMemory>(device, num_bytes);
                       },
                       [](at::Device device) -> std::unique_ptr<Graphs> { return std::make_unique<FakeGraphs>(device); },
                       /*has_host_memory=*/true,
                       /*pin=*/nullptr,
                       /*unpin=*/nullptr,
                       fake::is_found_by_auto};

// Whoever links this file has the device.
[[maybe_unused]] const bool is_added = [] {
  add_backend([]() -> const Backend& { return kFake; });
  return true;
}();

}  // namespace
}  // namespace tandem::device
