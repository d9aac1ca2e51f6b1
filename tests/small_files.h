// SPDX-License-Identifier: Apache-2.0
#pragma once
// A disk that fills up: while one lives, no file of the process grows beyond a size.

#include <sys/resource.h>

#include <csignal>

namespace tandem::test {

class SmallFiles {
 public:
  explicit SmallFiles(rlim_t most_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit small = before_;
    small.rlim_cur = most_bytes;
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace tandem::test
