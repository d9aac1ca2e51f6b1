// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that ranks of one machine read in place: a message between them would be copied in and out.
//
//   lender     write into SharedMemory::bytes(), lend(1), send the handle to the borrower
//   borrower   BorrowedMemory::map(handle), read bytes(), give_back()
//   lender     is_free(): may be written again

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "tandem/base/file/descriptor.h"
#include "tandem/comm/group.h"
#include "tandem/comm/shared_handle.h"

namespace tandem::comm {

/// Ownership  owns the memory; a borrower's mapping keeps the pages alive.
/// Threads    one writes and lends; borrowers give back from anywhere.
/// Errors     PeerError if the system has none.
class SharedMemory {
 public:
  explicit SharedMemory(int64_t num_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> bytes();
  SharedHandle handle() const;
  /// So many borrowers will read what is written now.
  void lend(int64_t borrowers);
  /// One more than those who read it now, or none, will read it.
  void lend_to_another();
  /// All of them have given it back.
  bool is_free() const;

 private:
  Descriptor file_;
  int64_t num_bytes_ = 0, serial_ = 0;
  void* memory_ = nullptr;
};

/// Another rank's. Ownership: owns its mapping.
class BorrowedMemory {
 public:
  /// Null if this process may not map it.
  static std::unique_ptr<BorrowedMemory> map(const SharedHandle& handle);
  ~BorrowedMemory();
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;

  std::span<const std::byte> bytes() const;
  /// Once for each lend() that counted this rank.
  void give_back();

 private:
  BorrowedMemory(void* memory, int64_t num_bytes) : memory_(memory), num_bytes_(num_bytes) {}
  void* memory_;
  int64_t num_bytes_;
};

/// Gives the memory back when the last copy of the pointer goes.
std::shared_ptr<const void> until_given_back(std::shared_ptr<BorrowedMemory> memory);

/// Memories to lend, used again once they are given back.
class SharedLanes {
 public:
  explicit SharedLanes(size_t most = std::numeric_limits<size_t>::max()) : most_(most) {}
  /// One of at least so many bytes that nobody reads; free ones that are too small go. So does the oldest of `most`: who has mapped it
  /// keeps it, another finds nothing there.
  SharedMemory& free_lane(int64_t bytes);
  bool are_free() const;

 private:
  size_t most_;
  std::vector<std::unique_ptr<SharedMemory>> lanes_;
};

/// Which ranks can map which others' memory, by trying: [borrower][lender], the same on every rank. Collective.
std::vector<std::vector<bool>> who_shares(Group& group);

}  // namespace tandem::comm
