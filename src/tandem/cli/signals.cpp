// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/signals.h"

#include <csignal>

namespace tandem::cli {
namespace {

// A signal handler has no other way to reach anything: this is the process's one flag.
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void request_stop(int) {
  // A second Ctrl-C ends at once. A second SIGTERM does not: a launcher may send one after the terminal's SIGINT.
  if (stop_flag.exchange(true)) return;
  std::signal(SIGINT, SIG_DFL);
}

extern "C" void note_interrupt(int) {
  if (!stop_flag.exchange(true)) return;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
}

}  // namespace

std::atomic<bool>& interrupts() {
  std::signal(SIGINT, note_interrupt);
  return stop_flag;
}

const std::atomic<bool>& stop_on_signals() {
  stop_flag = false;
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  if (std::signal(SIGHUP, request_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of write(), which names the path
  return stop_flag;
}

}  // namespace tandem::cli
