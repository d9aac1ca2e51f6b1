// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/arena.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::device {

// Shared, because a tensor may outlive the arena object; its deleter must still find the account.
struct Arena::Account {
  std::mutex mutex;
  std::string name;
  int64_t budget_bytes = 0, bytes = 0, peak_bytes = 0, stage_peak_bytes = 0;
  std::map<Owner, int64_t> by_owner;

  // Under the mutex.
  void add(const Owner& owner, int64_t more) {
    bytes += more;
    by_owner[owner] += more;
    peak_bytes = std::max(peak_bytes, bytes);
    stage_peak_bytes = std::max(stage_peak_bytes, bytes);
  }
  void take(const Owner& owner, int64_t wanted) {
    std::lock_guard lock(mutex);
    if (budget_bytes > 0 && bytes + wanted > budget_bytes)
      throw UserError("memory." + name + "_mib",
                      join_text(owner, " needs ", wanted, " bytes, but ", budget_bytes - bytes, " are left: ", bytes, " of ", budget_bytes,
                                " are held"),
                      name == "device" ? "a larger budget, memory.offload_*, a smaller model, batch or KV cache"
                                       : "a larger budget, or less offloading");
    add(owner, wanted);
  }
  void give_back(const Owner& owner, int64_t freed) {
    std::lock_guard lock(mutex);
    add(owner, -freed);
  }
};

namespace {

// Chunks of huge pages where there are several of them.
constexpr int64_t kHugeChunk = 2 << 20, kSmallChunk = 64 << 10, kManyChunks = 8;

}  // namespace

struct Region::State {
  State(std::shared_ptr<Arena::Account> account, Owner owner, int64_t num_bytes)
      : account(std::move(account)), owner(std::move(owner)), bytes(num_bytes) {
    chunk = bytes >= kManyChunks * kHugeChunk ? kHugeChunk : kSmallChunk;
    backed.resize(static_cast<size_t>((bytes + chunk - 1) / chunk));
    mapped = static_cast<size_t>(std::ssize(backed) * chunk + chunk);
    mapping = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) refuse();
    const auto address = reinterpret_cast<uintptr_t>(mapping), unit = static_cast<uintptr_t>(chunk);
    memory = reinterpret_cast<std::byte*>((address + unit - 1) / unit * unit);
    if (chunk == kHugeChunk) ::madvise(mapping, mapped, MADV_HUGEPAGE);
  }
  ~State() {
    if (mapping == MAP_FAILED) return;
    // An error may end an exchange whose transport still reads here: the pages go, the addresses stay for what is left of the process.
    if (std::uncaught_exceptions() > 0) ::madvise(mapping, mapped, MADV_DONTNEED);
    else ::munmap(mapping, mapped);
    account->give_back(owner, bytes_of(0, std::ssize(backed), true));
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[noreturn]] void refuse() const {
    throw PeerError(join_text("memory.", account->name, ": the system does not map ", bytes, " bytes for ", owner,
                              " (is there as much, and room under vm.max_map_count?)"));
  }
  /// Of the chunks that are backed, or are not.
  int64_t bytes_of(int64_t first, int64_t last, bool are_backed) const {
    int64_t sum = 0;
    for (int64_t c = first; c < last; ++c)
      if (backed[static_cast<size_t>(c)] == are_backed) sum += std::min(chunk, bytes - c * chunk);
    return sum;
  }
  /// Calls `change(address, size)` for each run of chunks that are not as they shall be; then they are.
  template <class Change>
  void turn(int64_t first, int64_t last, bool to, Change change) {
    TANDEM_CHECK(0 <= first && first <= last && last <= std::ssize(backed), "chunks ", first, " to ", last, " of ", backed.size());
    for (int64_t begin = first; begin < last; ++begin) {
      int64_t end = begin;
      while (end < last && backed[static_cast<size_t>(end)] != to) ++end;
      if (end == begin) continue;
      change(memory + begin * chunk, static_cast<size_t>((end - begin) * chunk));
      std::fill(backed.begin() + begin, backed.begin() + end, to);
      begin = end;
    }
  }

  std::shared_ptr<Arena::Account> account;
  Owner owner;
  int64_t bytes, chunk = 0;
  std::vector<bool> backed;
  void* mapping = MAP_FAILED;
  size_t mapped = 0;
  std::byte* memory = nullptr;  // aligned to a chunk
};

int64_t Region::num_chunks() const { return std::ssize(state_->backed); }
int64_t Region::chunk_bytes() const { return state_->chunk; }
int64_t Region::num_bytes() const { return state_->bytes; }
int64_t Region::backed_bytes() const { return state_->bytes_of(0, num_chunks(), true); }
bool Region::is_backed(int64_t chunk) const { return state_->backed[static_cast<size_t>(chunk)]; }

void Region::back(int64_t first, int64_t last) {
  const int64_t wanted = state_->bytes_of(first, last, false), held = backed_bytes();
  state_->account->take(state_->owner, wanted);
  try {
    state_->turn(first, last, true, [&](std::byte* memory, size_t size) {
      if (::mprotect(memory, size, PROT_READ | PROT_WRITE) != 0) state_->refuse();
    });
  } catch (...) {
    state_->account->give_back(state_->owner, wanted - (backed_bytes() - held));
    throw;
  }
}

void Region::release(int64_t first, int64_t last) {
  const int64_t held = backed_bytes();
  try {
    state_->turn(first, last, false, [&](std::byte* memory, size_t size) {
      if (::madvise(memory, size, MADV_DONTNEED) != 0 || ::mprotect(memory, size, PROT_NONE) != 0) state_->refuse();
    });
  } catch (...) {
    state_->account->give_back(state_->owner, held - backed_bytes());
    throw;
  }
  state_->account->give_back(state_->owner, held - backed_bytes());
}

Arena::Arena(std::string name, int64_t budget_bytes) : name_(std::move(name)), account_(std::make_shared<Account>()) {
  account_->name = name_;
  account_->budget_bytes = budget_bytes;
}

Region Arena::reserve(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype) {
  int64_t elements = 1;
  for (int64_t n : shape) elements *= n;
  Region region;
  region.state_ = std::make_shared<Region::State>(account_, owner,
                                                  std::max<int64_t>(elements * static_cast<int64_t>(c10::elementSize(dtype)), 1));
  region.tensor_ = at::from_blob(region.state_->memory, shape, [state = region.state_](void*) {}, at::TensorOptions().dtype(dtype));
  return region;
}

at::Tensor Arena::allocate(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype) {
  Region region = reserve(owner, std::move(shape), dtype);
  region.back();
  return region.tensor();
}

void Arena::count(const Owner& owner, int64_t bytes) {
  std::lock_guard lock(account_->mutex);
  account_->add(owner, bytes);
}

int64_t Arena::bytes() const {
  std::lock_guard lock(account_->mutex);
  return account_->bytes;
}
int64_t Arena::bytes(const Owner& owner) const {
  std::lock_guard lock(account_->mutex);
  const auto it = account_->by_owner.find(owner);
  return it == account_->by_owner.end() ? 0 : it->second;
}
int64_t Arena::peak_bytes() const {
  std::lock_guard lock(account_->mutex);
  return account_->peak_bytes;
}
int64_t Arena::take_stage_peak_bytes() {
  std::lock_guard lock(account_->mutex);
  return std::exchange(account_->stage_peak_bytes, account_->bytes);
}
std::optional<int64_t> Arena::left_bytes() const {
  std::lock_guard lock(account_->mutex);
  if (account_->budget_bytes == 0) return std::nullopt;
  return std::max<int64_t>(0, account_->budget_bytes - account_->bytes);
}
std::map<Owner, int64_t> Arena::by_owner() const {
  std::lock_guard lock(account_->mutex);
  return account_->by_owner;
}

}  // namespace tandem::device
