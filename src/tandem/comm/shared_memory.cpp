// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"

namespace tandem::comm {
namespace {

/// In front of the bytes.
struct alignas(64) Header {
  std::atomic<int64_t> borrowers;
  int64_t serial;
};
static_assert(std::atomic<int64_t>::is_always_lock_free, "processes share it");

constexpr int64_t kHeader_bytes = sizeof(Header);
constexpr int64_t kMostBytes = int64_t{1} << 46;

void* map_file(int file, int64_t num_bytes) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(num_bytes + kHeader_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

Header& header_of(void* memory) { return *static_cast<Header*>(memory); }

}  // namespace

SharedMemory::SharedMemory(int64_t num_bytes) : num_bytes_(num_bytes) {
  static std::atomic<int64_t> last_serial = 0;
  serial_ = ++last_serial;
  file_ = Descriptor(::memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = file_.number();
  // Reserved now: to touch pages that are not there would be a signal.
  const int failed = file < 0 ? errno : ::posix_fallocate(file, 0, num_bytes + kHeader_bytes);
  // Who borrows it relies on its size: to touch what was cut off would be a signal, too.
  if (failed == 0 && ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) memory_ = map_file(file, num_bytes);
  if (!memory_) throw PeerError(join_text("shared memory of ", num_bytes, " bytes: ", std::strerror(failed != 0 ? failed : errno)));
  new (memory_) Header{0, serial_};
}

SharedMemory::~SharedMemory() {
  ::munmap(memory_, static_cast<size_t>(num_bytes_ + kHeader_bytes));
}

std::span<std::byte> SharedMemory::bytes() { return {static_cast<std::byte*>(memory_) + kHeader_bytes, static_cast<size_t>(num_bytes_)}; }

SharedHandle SharedMemory::handle() const { return {::getpid(), file_.number(), serial_, num_bytes_}; }

void SharedMemory::lend(int64_t borrowers) {
  TANDEM_CHECK(is_free(), "memory that others read is lent again");
  header_of(memory_).borrowers.store(borrowers, std::memory_order_release);
}

void SharedMemory::lend_to_another() { header_of(memory_).borrowers.fetch_add(1, std::memory_order_acq_rel); }

bool SharedMemory::is_free() const { return header_of(memory_).borrowers.load(std::memory_order_acquire) == 0; }

std::unique_ptr<BorrowedMemory> BorrowedMemory::map(const SharedHandle& handle) {
  if (handle.num_bytes < 0 || handle.num_bytes > kMostBytes) return nullptr;
  const std::string path = join_text("/proc/", handle.process, "/fd/", handle.file);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) return nullptr;
  struct stat status {};
  const int seals = ::fcntl(file.number(), F_GET_SEALS);
  const bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  const bool fits = is_sealed && ::fstat(file.number(), &status) == 0 && status.st_size >= handle.num_bytes + kHeader_bytes;
  void* memory = fits ? map_file(file.number(), handle.num_bytes) : nullptr;
  if (!memory) return nullptr;
  std::unique_ptr<BorrowedMemory> borrowed(new BorrowedMemory(memory, handle.num_bytes));
  // A process of another machine, or container, may have the same number, and a file there.
  return header_of(memory).serial == handle.serial ? std::move(borrowed) : nullptr;
}

BorrowedMemory::~BorrowedMemory() { ::munmap(memory_, static_cast<size_t>(num_bytes_ + kHeader_bytes)); }

std::span<const std::byte> BorrowedMemory::bytes() const {
  return {static_cast<const std::byte*>(memory_) + kHeader_bytes, static_cast<size_t>(num_bytes_)};
}

void BorrowedMemory::give_back() { header_of(memory_).borrowers.fetch_sub(1, std::memory_order_release); }

std::shared_ptr<const void> until_given_back(std::shared_ptr<BorrowedMemory> memory) {
  BorrowedMemory* const lent = memory.get();
  return {lent, [kept = std::move(memory)](const void*) { kept->give_back(); }};
}

// A borrower may give a lane back at any moment, so each is asked once: one that was in use a moment ago, and was not measured, may be
// free and too small now.
SharedMemory& SharedLanes::free_lane(int64_t bytes) {
  SharedMemory* found = nullptr;
  std::erase_if(lanes_, [&](const auto& lane) {
    if (found || !lane->is_free()) return false;
    if (std::ssize(lane->bytes()) < bytes) return true;
    found = lane.get();
    return false;
  });
  if (found) return *found;
  if (lanes_.size() == most_) lanes_.erase(lanes_.begin());
  return *lanes_.emplace_back(std::make_unique<SharedMemory>(bytes + bytes / 4));  // batches differ: it should fit the next ones, too
}

bool SharedLanes::are_free() const {
  return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->is_free(); });
}

std::vector<std::vector<bool>> who_shares(Group& group) {
  // What tells memories of two machines apart beside their numbers: a secret that the borrower must find there.
  constexpr int64_t kSecret_bytes = 16;
  SharedMemory mine(kSecret_bytes);
  struct Question {
    SharedHandle handle;
    std::byte secret[kSecret_bytes];
  } question{mine.handle(), {}};
  const int64_t secret[2] = {reinterpret_cast<intptr_t>(&mine), ::getpid() * int64_t{1'000'003} + group.world_rank(group.rank())};
  std::memcpy(question.secret, secret, sizeof secret);
  std::memcpy(mine.bytes().data(), secret, sizeof secret);
  std::vector<std::byte> found;
  for (const Question& other : values_of_all(group, std::vector{question})) {
    const bool is_near = group.machine(static_cast<int>(found.size())) == group.machine(group.rank());
    const std::unique_ptr<BorrowedMemory> memory = is_near ? BorrowedMemory::map(other.handle) : nullptr;
    found.push_back(std::byte{memory && std::memcmp(memory->bytes().data(), other.secret, kSecret_bytes) == 0});
  }
  std::vector<std::vector<bool>> all;
  for (const std::vector<std::byte>& row : all_gather_bytes(group, found)) {  // also: nobody's memory goes before all have tried
    std::vector<bool>& of_rank = all.emplace_back();
    for (std::byte can : row) of_rank.push_back(can != std::byte{0});
  }
  return all;
}

}  // namespace tandem::comm
