// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program as a child: started without copying the memory of this process, however large it is, and ended with it.

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tandem/base/file/descriptor.h"

namespace tandem::reward {

/// Reads and writes of it return at once from now on.
void never_block(const Descriptor& fd);

/// What a confined child may use. Made by Sandbox; applied between start and exec.
struct Confinement {
  int64_t cpu_s = 0;
  int64_t memory_bytes = 0;
  int64_t file_bytes = 0;
  int64_t open_files = 0;
  int landlock = -1;                 ///< a rule set of Landlock; -1: none
  std::string quota;                 ///< options of a tmpfs on Launch::folder, in mounts of the child's own; "": the folder as it is
  uint64_t folder_access = 0;        ///< what Landlock grants on that tmpfs
  int mounts = -1;                   ///< mounts to enter, of a child that has its own; -1: those of this process
  std::vector<sock_filter> filter;   ///< of seccomp
  std::vector<size_t> pid_slots;     ///< instructions of the filter that compare with the child's own process id
};

struct Launch {
  std::vector<std::string> argv;     ///< argv[0] without a slash is looked up on PATH
  std::vector<std::string> env;      ///< "NAME=value"
  bool inherit_env = false;          ///< this process's environment, `env` in front of it
  std::vector<int> fds;              ///< descriptor i of the child; -1 is /dev/null; all others are closed
  std::string folder;                ///< where it starts; "" keeps the present one
  const Confinement* confinement = nullptr;
  /// The child keeps what its own children leave behind: the kernel makes it their parent. It is ended by SIGTERM, after which it has
  /// a moment to end them first; without, by SIGKILL.
  bool keeps_orphans = false;
};

/// Ownership  the child; ended and reaped by the destructor, with what else is in its process group.
/// Threads    one at a time, except stop(), which any thread may call.
/// Hazard     the kernel kills the child when the THREAD that started it ends, so that it never outlives this process.
class Process {
 public:
  Process() = default;
  /// Errors: UserError naming argv[0] if it cannot be started.
  explicit Process(const Launch& launch);
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)), keeps_orphans_(other.keeps_orphans_) {}
  Process& operator=(Process&& other) noexcept;
  ~Process() { end(); }

  explicit operator bool() const { return pid_ > 0; }
  pid_t id() const { return pid_; }
  /// The mounts that it sees, for Confinement::mounts. None if it has ended.
  Descriptor mounts() const;
  /// Kills the process and its group, or tells a keeper of orphans to end; it still has to be reaped.
  void stop() const noexcept;
  /// Kills what still runs, reaps it, and returns its wait status; 0 if there is none.
  int end() noexcept;
  /// Waits up to `seconds` for an end of its own, then end().
  int wait_or_end(double seconds) noexcept;

 private:
  void kill_group() const noexcept;
  bool ends_within(double seconds) const noexcept;
  pid_t pid_ = -1;
  bool keeps_orphans_ = false;
};

/// "exit code 1", "signal 9 (Killed)".
std::string status_text(int wait_status);

/// Two connected stream sockets / the reading and the writing end of a pipe, closed on exec.
std::pair<Descriptor, Descriptor> socket_pair();
std::pair<Descriptor, Descriptor> pipe_pair();
/// Everything from `fd` until its end or `seconds` have passed.
std::string read_all(const Descriptor& fd, double seconds);
/// Bytes as a descriptor to read from, sealed against writing.
Descriptor bytes_to_read(const std::string& bytes);

}  // namespace tandem::reward
