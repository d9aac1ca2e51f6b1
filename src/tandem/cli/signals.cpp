// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/signals.h"

#include <csignal>

namespace tandem::cli {
namespace {

// A signal handler has no other way to reach anything: this is the process's one flag.
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void request_stop(int) {
  stop_flag.store(true);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  return stop_flag;
}

}  // namespace tandem::cli
