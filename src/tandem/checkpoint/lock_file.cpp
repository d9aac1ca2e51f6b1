// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::checkpoint {
namespace {

constexpr double kLookS = 0.5;  // longer than a look at the lock takes

}  // namespace

LockFile::LockFile(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (!holds()) throw UserError(path, std::string("cannot be opened: ") + std::strerror(errno), "a writable folder");
  for (const Deadline end = Deadline::after_s(kLookS);; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    if (::flock(file_.number(), LOCK_EX | LOCK_NB) == 0) return;
    if (end.passed()) break;
  }
  throw UserError(path, "another run or loop writes into this folder", "its end, or another folder");
}

bool LockFile::is_at(const std::string& path) const {
  struct stat held {}, found {};
  return ::fstat(file_.number(), &held) == 0 && ::stat(path.c_str(), &found) == 0 && held.st_dev == found.st_dev &&
         held.st_ino == found.st_ino;
}

}  // namespace tandem::checkpoint
