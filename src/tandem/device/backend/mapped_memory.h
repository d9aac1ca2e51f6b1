// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that a driver maps, chunk by chunk, under addresses that stay.

#include <exception>
#include <utility>
#include <vector>

#include "tandem/device/memory.h"

namespace tandem::device {

/// `Driver` has for chunks of so many bytes, which the driver made for a device of its own counts:
///   std::byte* reserve(int64_t bytes)                addresses, or throws
///   void free(std::byte* address, int64_t bytes)     gives them back
///   Handle make(int64_t bytes)                       memory; Handle{} where there is no more
///   void map(std::byte* at, int64_t bytes, Handle)   memory under addresses
///   void open(std::byte* at, int64_t bytes)          lets the device read and write there, and queues zeros
///   void unmap(std::byte* at, int64_t bytes)         memory leaves its addresses
///   void drop(Handle)                                and goes back to the device
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
    int64_t mapped = first;
    try {
      for (; mapped < last && map(mapped); ++mapped) continue;
      if (mapped == last) driver_.open(at(first), (last - first) * chunk_bytes_);
    } catch (...) {
      release(first, mapped);
      throw;
    }
    if (mapped == last) return true;
    release(first, mapped);
    return false;
  }
  bool release(int64_t first, int64_t last) override {
    if (first == last) return true;
    driver_.wait();
    for (int64_t c = first; c < last; ++c) {
      Handle& handle = handles_[static_cast<size_t>(c)];
      driver_.unmap(at(c), chunk_bytes_);
      driver_.drop(std::exchange(handle, Handle{}));
    }
    return true;
  }

 private:
  using Handle = typename Driver::Handle;
  // False: there is no more memory.
  bool map(int64_t chunk) {
    const Handle handle = driver_.make(chunk_bytes_);
    if (handle == Handle{}) return false;
    try {
      driver_.map(at(chunk), chunk_bytes_, handle);
    } catch (...) {
      driver_.drop(handle);
      throw;
    }
    handles_[static_cast<size_t>(chunk)] = handle;
    return true;
  }
  std::byte* at(int64_t chunk) const { return address_ + chunk * chunk_bytes_; }

  Driver driver_;
  std::vector<Handle> handles_;  // by chunk; Handle{}: no memory
};

}  // namespace tandem::device
