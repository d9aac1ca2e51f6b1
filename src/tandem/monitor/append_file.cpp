// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/base/log.h"

namespace tandem::monitor {

std::string bytes_at(int file, int64_t at, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(file, bytes.data() + done, bytes.size() - done, at + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

int64_t whole_lines(int file, int64_t bytes) {
  constexpr int64_t kBlock = 1 << 16;
  while (bytes > 0) {
    const int64_t begin = std::max<int64_t>(0, bytes - kBlock);
    const size_t at = bytes_at(file, begin, bytes - begin).rfind('\n');
    if (at != std::string::npos) return begin + static_cast<int64_t>(at) + 1;
    bytes = begin;
  }
  return 0;
}

AppendFile::AppendFile(std::string path, ResumeAt resume_at_bytes, WholeBytes whole, std::string tail)
    : path_(std::move(path)), tail_(std::move(tail)) {
  const auto folder = std::filesystem::path(path_).parent_path();
  std::error_code ignored;  // open() below reports what matters
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  struct stat info {};
  if (!file_.is_open() || ::fstat(file_.number(), &info) != 0)
    throw UserError(path_, std::string("cannot be opened for writing: ") + std::strerror(errno), "choose a writable --run-dir");
  size_bytes_ = resume_at_bytes.value_or(0);
  if (const int64_t found = whole(file_.number(), std::min<int64_t>(size_bytes_, info.st_size)); found < size_bytes_) {
    log::warning(path_, ": has ", found, " whole bytes where the checkpoint counted ", size_bytes_, "; going on from there, with a gap");
    size_bytes_ = found;
  }
  if (::ftruncate(file_.number(), size_bytes_) != 0 || !write_at_end({})) warn_once("cut back");
}

void AppendFile::append(std::string_view bytes) noexcept {
  if (write_at_end(bytes)) {
    size_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  warn_once("written");
  if (::ftruncate(file_.number(), size_bytes_) == 0) write_at_end({});
}

int64_t AppendFile::flush() noexcept {
  if (::fsync(file_.number()) != 0) warn_once("made durable");
  return size_bytes_;
}

// One write call for bytes and tail, so that a killed process leaves no half of them.
bool AppendFile::write_at_end(std::string_view bytes) noexcept {
  try {
    std::string whole(bytes);
    whole += tail_;
    size_t done = 0;
    while (done < whole.size()) {
      const ssize_t wrote = ::pwrite(file_.number(), whole.data() + done, whole.size() - done, size_bytes_ + static_cast<int64_t>(done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return false;
      done += static_cast<size_t>(wrote);
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void AppendFile::warn_once(const char* doing) noexcept {
  if (std::exchange(warned_, true)) return;
  const int error = errno;
  try {
    log::warning(path_, ": could not be ", doing, ": ", std::strerror(error), "; the run goes on, this file has a gap");
  } catch (const std::exception&) {
    log::write("warning", "a metrics file could not be written");
  }
}

}  // namespace tandem::monitor
