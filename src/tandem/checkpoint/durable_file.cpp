// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/checkpoint/checksum.h"

namespace tandem::checkpoint {
namespace {

[[noreturn]] void fail(const std::string& path, const char* operation, int error) {
  throw PeerError(path + ": " + operation + " failed: " + std::strerror(error));
}

std::string temporary_name(const std::string& path) { return path + ".tmp"; }

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail(path, "open", errno);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  constexpr size_t kMaxWrite = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void sync_path(const std::string& path, int flags) {
  Descriptor file(path, flags);
  // Some file systems cannot sync a directory; they say so with EINVAL.
  if (::fsync(file.fd()) != 0 && errno != EINVAL) fail(path, "fsync", errno);
}

}  // namespace

DurableFile::DurableFile(const std::string& path) : path_(path) {
  fd_ = ::open(temporary_name(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(path, "open", errno);
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), partial_(std::exchange(other.partial_, false)) {}

DurableFile::~DurableFile() {
  if (fd_ >= 0) ::close(fd_);
  if (partial_) ::unlink(temporary_name(path_).c_str());
}

void DurableFile::append(std::span<const std::byte> bytes) { write_all(fd_, bytes, path_); }

void DurableFile::close() {
  if (::fsync(fd_) != 0) fail(path_, "fsync", errno);
  if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "close", errno);
}

void DurableFile::commit() {
  if (fd_ >= 0) close();
  if (::rename(temporary_name(path_).c_str(), path_.c_str()) != 0) fail(path_, "rename", errno);
  partial_ = false;
}

void write_durable(const std::string& path, const std::string& bytes) {
  DurableFile file(path);
  file.append(std::as_bytes(std::span(bytes)));
  file.commit();
}

void sync_file(const std::string& path) { sync_path(path, O_RDONLY); }
void sync_directory(const std::string& path) { sync_path(path, O_RDONLY | O_DIRECTORY); }

uint64_t file_checksum(const std::string& path) {
  Descriptor file(path, O_RDONLY);
  Checksum checksum;
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t count = ::read(file.fd(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "read", errno);
    if (count == 0) return checksum.value();
    checksum.update(std::span(buffer.data(), static_cast<size_t>(count)));
  }
}

}  // namespace tandem::checkpoint
