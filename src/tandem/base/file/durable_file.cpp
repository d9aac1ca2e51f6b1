// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/file/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "tandem/base/error.h"

namespace tandem {
namespace {

[[noreturn]] void fail(const std::string& path, const char* operation, int error) {
  throw PeerError(path + ": " + operation + " failed: " + std::strerror(error));
}

// Of one write to the disk, and what addresses and sizes past the page cache are multiples of.
constexpr size_t kBlockBytes = size_t{1} << 20, kAlignment = 4096;
// Bytes that are copied and summed up while they are in the cache.
constexpr size_t kCachedBytes = size_t{1} << 17;

std::string temporary_name(const std::string& path) { return path + ".tmp"; }

Descriptor opened(const std::string& path, int flags) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file.is_open()) fail(path, "open", errno);
  return file;
}

// From here on the file is written by way of the page cache. False: it was so before.
bool leave_direct(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return (flags & O_DIRECT) != 0 && ::fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && leave_direct(fd)) continue;  // what is left after a short write, or larger sectors
    if (written < 0) fail(path, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void sync_path(const std::string& path, int flags) {
  const Descriptor file = opened(path, flags);
  // Some file systems cannot sync a directory; they say so with EINVAL.
  if (::fsync(file.number()) != 0 && errno != EINVAL) fail(path, "fsync", errno);
}

}  // namespace

DurableFile::DurableFile(const std::string& path) : path_(path) {
  for (const int direct : {O_DIRECT, 0}) {
    file_ = Descriptor(::open(temporary_name(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | direct, 0644));
    if (file_.is_open() || errno != EINVAL) break;  // that: the file system has no such way
  }
  if (!file_.is_open()) fail(path, "open", errno);
}

void DurableFile::Free::operator()(std::byte* block) const { std::free(block); }

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      block_(std::move(other.block_)),
      held_(std::exchange(other.held_, 0)),
      sum_(other.sum_),
      partial_(std::exchange(other.partial_, false)) {}

DurableFile::~DurableFile() {
  if (partial_) ::unlink(temporary_name(path_).c_str());
}

void DurableFile::append(std::span<const std::byte> bytes) {
  if (!block_) block_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBlockBytes)));
  if (!block_) throw std::bad_alloc();
  while (!bytes.empty()) {
    const std::span part = bytes.first(std::min({bytes.size(), kBlockBytes - held_, kCachedBytes}));
    std::memcpy(block_.get() + held_, part.data(), part.size());
    sum_.update(std::span(block_.get() + held_, part.size()));
    held_ += part.size();
    bytes = bytes.subspan(part.size());
    if (held_ == kBlockBytes) write_block();
  }
}

void DurableFile::write_block() {
  if (held_ % kAlignment != 0) leave_direct(file_.number());
  write_all(file_.number(), std::span(block_.get(), std::exchange(held_, 0)), path_);
}

void DurableFile::close() {
  if (held_ > 0) write_block();
  block_.reset();
  if (::fsync(file_.number()) != 0) fail(path_, "fsync", errno);
  if (::close(file_.release()) != 0) fail(path_, "close", errno);
}

std::string DurableFile::commit() {
  if (file_.is_open()) close();
  if (::rename(temporary_name(path_).c_str(), path_.c_str()) != 0) fail(path_, "rename", errno);
  partial_ = false;
  return sum_.text();
}

std::string write_durable(const std::string& path, const std::string& bytes) {
  DurableFile file(path);
  file.append(std::as_bytes(std::span(bytes)));
  return file.commit();
}

void sync_file(const std::string& path) { sync_path(path, O_RDONLY); }
void sync_directory(const std::string& path) { sync_path(path, O_RDONLY | O_DIRECTORY); }

std::string file_checksum(const std::string& path) {
  const Descriptor file = opened(path, O_RDONLY);
  Checksum checksum;
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t count = ::read(file.number(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "read", errno);
    if (count == 0) return checksum.text();
    checksum.update(std::span(buffer.data(), static_cast<size_t>(count)));
  }
}

}  // namespace tandem
