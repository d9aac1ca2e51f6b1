// SPDX-License-Identifier: Apache-2.0
#pragma once
// An action of a process of its own, which has little memory and little time.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <string>

#include "tandem/base/error.h"

namespace tandem::test {

/// "done", "refused" for a UserError, "no memory", or "signal N"; a run beyond `seconds` ends with SIGALRM. `more_bytes` are what it may
/// have beside what this process has. Under AddressSanitizer, whose own memory is boundless, time alone is bounded.
inline std::string within_memory(int64_t more_bytes, unsigned seconds, const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(seconds);
#ifndef __SANITIZE_ADDRESS__
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + more_bytes);
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
#endif
    try {
      action();
    } catch (const UserError& e) {
      ::_exit(std::string(e.what()).size() < 100'000 ? 10 : 13);
    } catch (const std::bad_alloc&) {
      ::_exit(11);
    } catch (...) {
      ::_exit(12);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  switch (WEXITSTATUS(status)) {
    case 0: return "done";
    case 10: return "refused";
    case 11: return "no memory";
    case 13: return "refused with a text without end";
    default: return "another exception";
  }
}

}  // namespace tandem::test
