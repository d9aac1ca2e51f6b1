// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/arena.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::device {

// Shared, because a tensor may outlive the arena object; its deleter must still find the account.
struct Arena::Account {
  std::mutex mutex;
  int64_t budget_bytes = 0, bytes = 0, peak_bytes = 0;
  std::map<Owner, int64_t> by_owner;
};

Arena::Arena(std::string name, int64_t budget_bytes) : name_(std::move(name)), account_(std::make_shared<Account>()) {
  account_->budget_bytes = budget_bytes;
}

at::Tensor Arena::allocate(const Owner& owner, std::vector<int64_t> shape, c10::ScalarType dtype) {
  int64_t elements = 1;
  for (int64_t n : shape) elements *= n;
  const int64_t bytes = std::max<int64_t>(elements * static_cast<int64_t>(c10::elementSize(dtype)), 1);
  {
    std::lock_guard lock(account_->mutex);
    if (account_->budget_bytes > 0 && account_->bytes + bytes > account_->budget_bytes)
      throw UserError("memory." + name_ + "_mib",
                      join_text(owner, " needs ", bytes, " bytes, but ", account_->bytes, " of ", account_->budget_bytes, " are held"),
                      "a larger budget, a smaller model, batch or KV cache");
    account_->bytes += bytes;
    account_->by_owner[owner] += bytes;
    account_->peak_bytes = std::max(account_->peak_bytes, account_->bytes);
  }
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto give_back = [account = account_, owner, bytes] {
    std::lock_guard lock(account->mutex);
    account->bytes -= bytes;
    account->by_owner[owner] -= bytes;
  };
  if (memory == MAP_FAILED) {
    give_back();
    throw PeerError(join_text("memory.", name_, ": the system has no ", bytes, " bytes for ", owner));
  }
  ::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  auto release = [give_back, bytes](void* p) {
    ::munmap(p, static_cast<size_t>(bytes));
    give_back();
  };
  return at::from_blob(memory, shape, release, at::TensorOptions().dtype(dtype));
}

void Arena::count(const Owner& owner, int64_t bytes) {
  std::lock_guard lock(account_->mutex);
  account_->bytes += bytes;
  account_->by_owner[owner] += bytes;
  account_->peak_bytes = std::max(account_->peak_bytes, account_->bytes);
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
std::map<Owner, int64_t> Arena::by_owner() const {
  std::lock_guard lock(account_->mutex);
  return account_->by_owner;
}

}  // namespace tandem::device
