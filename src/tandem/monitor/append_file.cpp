// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/base/log.h"

namespace tandem::monitor {

AppendFile::AppendFile(std::string path, ResumeAt resume_at_bytes, std::string tail) : path_(std::move(path)), tail_(std::move(tail)) {
  const auto folder = std::filesystem::path(path_).parent_path();
  std::error_code ignored;  // open() below reports what matters
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0)
    throw UserError(path_, std::string("cannot be opened for writing: ") + std::strerror(errno), "choose a writable --run-dir");
  size_bytes_ = resume_at_bytes.value_or(0);
  if (size_bytes_ > info.st_size) {
    log::warning(path_, ": has ", info.st_size, " bytes where the checkpoint counted ", size_bytes_, "; going on from its end");
    size_bytes_ = info.st_size;
  }
  if (::ftruncate(fd_, size_bytes_) != 0 || !write_at_end({})) warn_once("cut back");
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view bytes) noexcept {
  if (write_at_end(bytes)) {
    size_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  warn_once("written");
  if (::ftruncate(fd_, size_bytes_) == 0) write_at_end({});
}

int64_t AppendFile::flush() noexcept {
  if (::fsync(fd_) != 0) warn_once("made durable");
  return size_bytes_;
}

// One write call for bytes and tail, so that a killed process leaves no half of them.
bool AppendFile::write_at_end(std::string_view bytes) noexcept {
  try {
    std::string whole(bytes);
    whole += tail_;
    size_t done = 0;
    while (done < whole.size()) {
      const ssize_t wrote = ::pwrite(fd_, whole.data() + done, whole.size() - done, size_bytes_ + static_cast<int64_t>(done));
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
