// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/arena.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/device/device.h"

namespace tandem::device {

// Shared, because a tensor may outlive the arena object; its deleter must still find the account.
struct Arena::Account {
  std::mutex mutex;
  std::string name;
  int64_t budget_bytes = 0, bytes = 0, peak_bytes = 0, stage_peak_bytes = 0;
  std::map<Owner, int64_t> by_owner;

  // Under the mutex, as add(): "" or " (weights 1.0 MB, ...)".
  std::string owners() const {
    std::string text;
    for (const auto& [owner, held] : by_owner)
      if (held > 0) text += join_text(text.empty() ? " (" : ", ", owner, " ", bytes_text(held));
    return text.empty() ? "" : text + ")";
  }
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
                                " are held", owners()),
                      name == "device" ? "a larger budget, memory.offload_*, a smaller model, batch or KV cache"
                                       : "a larger budget, or less offloading");
    add(owner, wanted);
  }
  void give_back(const Owner& owner, int64_t freed) {
    std::lock_guard lock(mutex);
    add(owner, -freed);
  }
};

struct Region::State {
  State(std::shared_ptr<Arena::Account> account, Owner owner, at::Device device, int64_t num_bytes)
      : account(std::move(account)), owner(std::move(owner)), device(device), bytes(num_bytes),
        memory(backend_of(device).reserve(device, num_bytes)) {
    chunk = memory->chunk_bytes();
    backed.resize(static_cast<size_t>((bytes + chunk - 1) / chunk));
  }
  ~State() { account->give_back(owner, bytes_of(0, std::ssize(backed), true)); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[noreturn]] void refuse() const {
    const std::string remedy = device.is_cpu() ? "is there as much memory, and room under vm.max_map_count?"
                                               : "memory.offload_*, a smaller model, batch or KV cache need less";
    std::lock_guard lock(account->mutex);
    throw PeerError(join_text("memory.", account->name, ": ", device.str(), " has no ", bytes_text(bytes), " for ", owner, ": ",
                              bytes_text(account->bytes), " are held with them", account->owners(), " (", remedy, ")"));
  }
  /// Of the chunks that are backed, or are not.
  int64_t bytes_of(int64_t first, int64_t last, bool are_backed) const {
    int64_t sum = 0;
    for (int64_t c = first; c < last; ++c)
      if (backed[static_cast<size_t>(c)] == are_backed) sum += std::min(chunk, bytes - c * chunk);
    return sum;
  }
  /// Calls `change(first, last)` for each run of chunks that are not as they shall be; then they are.
  template <class Change>
  void turn(int64_t first, int64_t last, bool to, Change change) {
    TANDEM_CHECK(0 <= first && first <= last && last <= std::ssize(backed), "chunks ", first, " to ", last, " of ", backed.size());
    for (int64_t begin = first; begin < last; ++begin) {
      int64_t end = begin;
      while (end < last && backed[static_cast<size_t>(end)] != to) ++end;
      if (end == begin) continue;
      if (!change(begin, end)) refuse();
      std::fill(backed.begin() + begin, backed.begin() + end, to);
      begin = end;
    }
  }

  std::shared_ptr<Arena::Account> account;
  Owner owner;
  at::Device device;
  int64_t bytes, chunk = 0;
  std::vector<bool> backed;
  std::unique_ptr<Memory> memory;
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
    state_->turn(first, last, true, [&](int64_t begin, int64_t end) { return state_->memory->back(begin, end); });
  } catch (...) {
    state_->account->give_back(state_->owner, wanted - (backed_bytes() - held));
    throw;
  }
}

void Region::release(int64_t first, int64_t last) {
  const int64_t held = backed_bytes();
  try {
    state_->turn(first, last, false, [&](int64_t begin, int64_t end) { return state_->memory->release(begin, end); });
  } catch (...) {
    state_->account->give_back(state_->owner, held - backed_bytes());
    throw;
  }
  state_->account->give_back(state_->owner, held - backed_bytes());
}

Arena::Arena(std::string name, int64_t budget_bytes, at::Device device)
    : name_(std::move(name)), device_(device), account_(std::make_shared<Account>()) {
  account_->name = name_;
  account_->budget_bytes = budget_bytes;
}

Region Arena::reserve(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype) {
  int64_t elements = 1;
  for (int64_t n : shape) elements *= n;
  Region region;
  region.state_ = std::make_shared<Region::State>(account_, owner, device_,
                                                  std::max<int64_t>(elements * static_cast<int64_t>(c10::elementSize(dtype)), 1));
  region.tensor_ = at::from_blob(region.state_->memory->address(), shape, [state = region.state_](void*) {},
                                 at::TensorOptions().dtype(dtype).device(device_), device_);
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
