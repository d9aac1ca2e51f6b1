// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tensor that can leave the device for the host and come back to the same address.

#include "tandem/device/arena.h"

namespace tandem::device {

/// What becomes of the contents when the memory leaves.
enum class Keep {
  kContents,  ///< the host gets them, and they come back
  kOriginal,  ///< they never change: the host gets them once, and they come back
  kNothing,   ///< they are lost, and zeros come back
};

/// Where something lives, and as whose.
struct Home {
  Arena& device;
  Owner owner;
  Arena* host = nullptr;  ///< where it may leave for; null, if it never leaves or nothing is kept
  Keep keep = Keep::kContents;
  bool begins_away = false;  ///< there is no memory before it comes back for the first time
};

/// Ownership  owns its memory on the device and, from the first time it leaves, a copy on the host that is kept for the next time. Views
///            of tensor() stay good, but must not be touched while it is away.
/// Threads    one at a time.
/// Blocking   leave, until the host has the contents. What comes back is queued on the device.
/// Errors     UserError when a budget would be exceeded; then nothing has moved, but what went by chunks.
class Swappable {
 public:
  /// Zeros, flat, on the device, or nowhere yet. The arenas must outlive it.
  Swappable(const Home& home, int64_t num_elements, c10::ScalarType dtype);
  ~Swappable();
  Swappable(const Swappable&) = delete;
  Swappable& operator=(const Swappable&) = delete;

  const at::Tensor& tensor() const { return region_.tensor(); }
  /// The tensor, or its copy on the host while it is away. Not where nothing is kept, nor when it has left in part.
  const at::Tensor& contents() const;
  bool is_present() const { return region_.backed_bytes() == region_.num_bytes(); }
  bool is_away() const { return region_.backed_bytes() == 0; }

  /// Bytes that were copied.
  int64_t leave() { return leave(0, num_chunks()); }
  int64_t come_back() { return come_back(0, num_chunks()); }

  /// By chunks: those that elements [begin, end) of the flat tensor touch are chunks_of(begin, end).
  int64_t num_chunks() const { return region_.num_chunks(); }
  std::pair<int64_t, int64_t> chunks_of(int64_t begin, int64_t end) const;
  int64_t leave(int64_t first, int64_t last);
  int64_t come_back(int64_t first, int64_t last);

 private:
  at::Tensor bytes_of(const at::Tensor& tensor, int64_t chunk) const;

  Region region_;
  Home home_;
  at::Tensor copy_;
  std::shared_ptr<void> pinned_;  // of the copy
  bool is_copied_ = false;  // kOriginal: the host has all of it
};

}  // namespace tandem::device
