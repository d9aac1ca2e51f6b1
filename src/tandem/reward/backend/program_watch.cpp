// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/program_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tandem/reward/backend/private_folder.h"

namespace tandem::reward {

namespace {

constexpr int kTickMs = 20;               // how often the folder is looked at
constexpr size_t kErrorBytes = 4096;      // of standard error that are kept

}  // namespace

ProgramWatch::ProgramWatch(Ends ends, const SandboxLimits& limits, const std::string& folder)
    : ends_(std::move(ends)), limits_(limits), folder_(folder), deadline_(Deadline::after_s(limits.wall_s)) {
  for (Descriptor* fd : {&ends_.output, &ends_.errors, &ends_.channel}) never_block(*fd);
}

void ProgramWatch::stop(const char* why) {
  if (run_.why.empty()) run_.why = why;
}

bool ProgramWatch::files_too_large(const Process& process) const {
  if (folder_.empty()) return false;
  const int64_t named = folder_bytes(folder_);
  return named > limits_.file_bytes || unnamed_bytes(process.id()) > limits_.file_bytes - named;
}

// Takes what there is without waiting; closes the descriptor at its end.
void ProgramWatch::take(Descriptor& fd, std::string& into, size_t keep) {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = read(fd.number(), buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return fd.close();
    num_bytes_ += got;
    into.append(buffer, std::min(static_cast<size_t>(got), keep - std::min(keep, into.size())));
    if (num_bytes_ > limits_.output_bytes) return stop("output limit");
  }
}

// The first line says that the program has run to its end. Then we ask the question. The second line is its answer.
void ProgramWatch::converse(const std::string& question) {
  take(ends_.channel, channel_text_, static_cast<size_t>(limits_.output_bytes));
  const size_t ready = channel_text_.find('\n');
  if (ready == std::string::npos) return;
  if (!asked_ && ends_.channel.is_open()) {
    asked_ = true;
    const std::string line = question + "\n";
    fcntl(ends_.channel.number(), F_SETFL, fcntl(ends_.channel.number(), F_GETFL) & ~O_NONBLOCK);
    const auto left_us = static_cast<int64_t>(1e6 * std::max(0.001, deadline_.left_s()));
    const timeval patience{left_us / 1000000, left_us % 1000000};
    setsockopt(ends_.channel.number(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    for (size_t at = 0; at < line.size();) {
      const ssize_t sent = send(ends_.channel.number(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) break;  // it has gone, or does not read; the limits see to the rest
      at += static_cast<size_t>(sent);
    }
    never_block(ends_.channel);
  }
  const size_t end = channel_text_.find('\n', ready + 1);
  if (end != std::string::npos) run_.answer = channel_text_.substr(ready + 1, end - ready - 1);
}

bool ProgramWatch::within_limits(const Process& process) {
  if (deadline_.passed()) stop("time limit");
  if (files_too_large(process)) stop("file limit");
  return run_.why.empty();
}

// Takes what the program prints within one tick; what the channel has to say is returned.
short ProgramWatch::wait() {
  pollfd fds[] = {{ends_.output.number(), POLLIN, 0}, {ends_.errors.number(), POLLIN, 0}, {ends_.channel.number(), POLLIN, 0}};
  poll(fds, 3, kTickMs);
  if (fds[0].revents) take(ends_.output, run_.output, static_cast<size_t>(limits_.output_bytes));
  if (fds[1].revents) take(ends_.errors, run_.errors, kErrorBytes);
  return fds[2].revents;
}

ProgramRun ProgramWatch::follow(Process process, const std::string& question) {
  while (within_limits(process) && (ends_.output.is_open() || ends_.errors.is_open()))
    if (wait()) converse(question);
  // A program may close its output and live on: it has what is left of the wall time.
  const int status = run_.why.empty() ? process.wait_or_end(deadline_.left_s()) : process.end();
  if (ends_.channel.is_open() && run_.why.empty()) converse(question);
  if (run_.why.empty() && status != 0) run_.why = deadline_.passed() ? "time limit" : status_text(status);
  run_.finished = run_.why.empty();
  return std::move(run_);
}

ProgramRun ProgramWatch::await_verdict(Process process) {
  while (run_.answer.empty() && within_limits(process) && ends_.channel.is_open())
    if (wait()) {
      take(ends_.channel, channel_text_, static_cast<size_t>(limits_.output_bytes));
      run_.answer = channel_text_.substr(0, channel_text_.find('\n') + 1);
    }
  process.end();
  if (run_.why.empty() && run_.answer.empty()) run_.why = "no verdict";
  if (!run_.answer.empty()) run_.answer.pop_back();
  run_.finished = run_.why.empty();
  return std::move(run_);
}

}  // namespace tandem::reward
