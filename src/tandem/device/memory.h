// SPDX-License-Identifier: Apache-2.0
#pragma once
// Addresses of a device that get memory and lose it: what arena.h is made of.

#include <cstddef>
#include <cstdint>

namespace tandem::device {

/// Ownership  owns addresses and memory; both go with it.
/// Threads    one at a time.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* address() const { return address_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  /// Chunks [first, last), none of which has memory, get some, zeroed. False: there is not as much; then none of them has got any.
  virtual bool back(int64_t first, int64_t last) = 0;
  /// Chunks [first, last), all of which have memory, lose it: the device has it again. What is queued there is done first.
  virtual bool release(int64_t first, int64_t last) = 0;

 protected:
  std::byte* address_ = nullptr;  // of a multiple of a chunk
  int64_t chunk_bytes_ = 0;
};

}  // namespace tandem::device
