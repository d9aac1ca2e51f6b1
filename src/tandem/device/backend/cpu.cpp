// SPDX-License-Identifier: Apache-2.0
// The processor: addresses without memory are pages that nobody may touch.
#include <sys/mman.h>

#include <algorithm>
#include <exception>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/device/device.h"
#include "tandem/device/pages.h"
#include "tandem/device/process.h"

namespace tandem::device {
namespace {

// Chunks of huge pages where there are several of them.
constexpr int64_t kHugeChunk = 2 << 20, kSmallChunk = 64 << 10, kManyChunks = 8;

class Pages final : public Memory {
 public:
  explicit Pages(int64_t num_bytes) {
    chunk_bytes_ = num_bytes >= kManyChunks * kHugeChunk ? kHugeChunk : kSmallChunk;
    const int64_t num_chunks = (num_bytes + chunk_bytes_ - 1) / chunk_bytes_;
    mapped_ = static_cast<size_t>((num_chunks + 1) * chunk_bytes_);
    mapping_ = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED)
      throw PeerError(join_text("the system has no addresses for ", bytes_text(num_bytes), " (is there room under ulimit -v?)"));
    const auto address = reinterpret_cast<uintptr_t>(mapping_), unit = static_cast<uintptr_t>(chunk_bytes_);
    address_ = reinterpret_cast<std::byte*>((address + unit - 1) / unit * unit);
    if (chunk_bytes_ == kHugeChunk) ::madvise(mapping_, mapped_, MADV_HUGEPAGE);
  }
  ~Pages() override {
    // An error may end an exchange whose transport still reads here: the pages go, the addresses stay for what is left of the process.
    if (std::uncaught_exceptions() > 0) ::madvise(mapping_, mapped_, MADV_DONTNEED);
    else ::munmap(mapping_, mapped_);
  }
  bool back(int64_t first, int64_t last) override {
    return ::mprotect(address_ + first * chunk_bytes_, size(first, last), PROT_READ | PROT_WRITE) == 0;
  }
  bool release(int64_t first, int64_t last) override {
    std::byte* const memory = address_ + first * chunk_bytes_;
    return ::madvise(memory, size(first, last), MADV_DONTNEED) == 0 && ::mprotect(memory, size(first, last), PROT_NONE) == 0;
  }

 private:
  size_t size(int64_t first, int64_t last) const { return static_cast<size_t>((last - first) * chunk_bytes_); }

  void* mapping_ = MAP_FAILED;
  size_t mapped_ = 0;
};

const Backend kCpu = {"cpu",
                      at::kCPU,
                      [] { return 1; },
                      [] { return std::pair<std::string, std::string>(); },
                      [](at::Device) {},
                      [](at::Device) {},
                      [](at::Device) { return cores_name(); },
                      nullptr,
                      [](at::Device, int64_t num_bytes) { return pages(num_bytes); },
                      [](at::Device) { return std::unique_ptr<Graphs>(); }};

}  // namespace

std::unique_ptr<Memory> pages(int64_t num_bytes) { return std::make_unique<Pages>(num_bytes); }

const Backend& cpu::backend() { return kCpu; }

}  // namespace tandem::device
