// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that a driver maps, chunk by chunk, under addresses that stay.

#include <exception>
#include <vector>

#include "tandem/device/memory.h"

namespace tandem::device {

/// `Driver` has for chunks of so many bytes, which the driver made for a device of its own counts:
///   std::byte* reserve(int64_t bytes)                addresses, or throws
///   void free(std::byte* address, int64_t bytes)     gives them back
///   Handle make(int64_t bytes)                       memory; Handle{} where there is no more
///   void map(std::byte* at, int64_t bytes, Handle)   memory under addresses
///   void open(std::byte* at, int64_t bytes)          lets the device read and write there, and queues zeros
///   void unmap(std::byte* at, int64_t bytes, Handle) and gives the memory back
///   void wait()                                      for the device
/// All of them throw PeerError for what the device refuses.
template <class Driver>
class MappedMemory final : public Memory {
 public:
  MappedMemory(Driver driver, int64_t num_bytes) : driver_(std::move(driver)) {
    // Whole allocations of a driver take 2 MiB at least; few large ones are mapped faster.
    constexpr int64_t kLargeChunk = 32 << 20, kChunk = 2 << 20, kManyLarge = 8;
    chunk_bytes_ = num_bytes >= kManyLarge * kLargeChunk ? kLargeChunk : kChunk;
    handles_.resize(static_cast<size_t>((num_bytes + chunk_bytes_ - 1) / chunk_bytes_));
    address_ = driver_.reserve(std::ssize(handles_) * chunk_bytes_);
  }
  ~MappedMemory() override {
    try {
      for (int64_t c = 0; c < std::ssize(handles_); ++c)
        if (handles_[static_cast<size_t>(c)] != Handle{}) release(c, c + 1);
      driver_.free(address_, std::ssize(handles_) * chunk_bytes_);
    } catch (const std::exception&) {  // a lost device has told who waited for it
    }
  }
  bool back(int64_t first, int64_t last) override {
    for (int64_t c = first; c < last; ++c) {
      const Handle handle = driver_.make(chunk_bytes_);
      if (handle == Handle{}) {
        if (c > first) release(first, c);
        return false;
      }
      driver_.map(at(c), chunk_bytes_, handle);
      handles_[static_cast<size_t>(c)] = handle;
    }
    driver_.open(at(first), (last - first) * chunk_bytes_);
    return true;
  }
  bool release(int64_t first, int64_t last) override {
    driver_.wait();
    for (int64_t c = first; c < last; ++c) {
      Handle& handle = handles_[static_cast<size_t>(c)];
      driver_.unmap(at(c), chunk_bytes_, handle);
      handle = Handle{};
    }
    return true;
  }

 private:
  using Handle = typename Driver::Handle;
  std::byte* at(int64_t chunk) const { return address_ + chunk * chunk_bytes_; }

  Driver driver_;
  std::vector<Handle> handles_;  // by chunk; Handle{}: no memory
};

}  // namespace tandem::device
