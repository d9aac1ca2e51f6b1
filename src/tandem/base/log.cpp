// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/log.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"

namespace tandem::log {
namespace {

// The process has one standard error, so it has one log; this is the only mutable state outside objects.
struct State {
  std::mutex mutex;
  std::FILE* file = nullptr;
  std::atomic<bool> quiet = false, shows_live = false;
  std::set<std::string> said_once;
  std::string live;  // what stands in the last line of the terminal
};
State& state() {
  static State s;
  return s;
}

constexpr const char* kBackToStart = "\r\x1b[K";  // and clears the line

size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

// With the lock held. A line that reached the last column would wrap, and could not be taken back.
void draw_live() {
  std::fprintf(stderr, "%s%s", kBackToStart, state().live.substr(0, terminal_columns() - 1).c_str());
}

// Null, with errno, for what cannot be written to at once: a pipe would wait for a reader.
std::FILE* open_to_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  return fd < 0 ? nullptr : ::fdopen(fd, "a");
}

}  // namespace

void also_to_file(const std::string& path) {
  std::lock_guard lock(state().mutex);
  std::FILE* file = open_to_append(path);
  if (!file) throw UserError(path, std::string("cannot open the log: ") + std::strerror(errno), "choose a writable --run-dir");
  if (state().file) std::fclose(state().file);
  state().file = file;
}

void stop_file() {
  std::lock_guard lock(state().mutex);
  if (state().file) std::fclose(state().file);
  state().file = nullptr;
}

void quiet(bool on) { state().quiet = on; }
void show_live(bool on) { state().shows_live = on; }
bool shows_live() { return state().shows_live; }

void live(const std::string& text) noexcept {
  const std::string shown = terminal_text(text);
  std::lock_guard lock(state().mutex);
  if (!state().shows_live || state().live == shown) return;
  state().live = shown;
  draw_live();
}

void warning_once(const std::string& text) {
  if (locked(state().mutex, [&] { return state().said_once.insert(text).second; })) write("warning", text);
}

void write(const char* level, const std::string& given) noexcept {
  const std::string text = terminal_text(given);  // of the file, too: it is read in a terminal
  std::lock_guard lock(state().mutex);
  const bool is_info = std::strcmp(level, "info") == 0;
  if (!(is_info && state().quiet)) {
    const bool above_live = !state().live.empty();
    if (above_live) std::fputs(kBackToStart, stderr);
    if (is_info) std::fprintf(stderr, "%s\n", text.c_str());
    else std::fprintf(stderr, "tandem: %s: %s\n", level, text.c_str());
    if (above_live) draw_live();
  }
  if (!state().file) return;
  char stamp[32];
  const std::time_t t = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&t, &parts);
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &parts);
  std::fprintf(state().file, "%s %s %s\n", stamp, level, text.c_str());
  std::fflush(state().file);
}

}  // namespace tandem::log
