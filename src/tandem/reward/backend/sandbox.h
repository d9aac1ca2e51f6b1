// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a Python program that nobody has read, so that it can harm nothing.
//
// What holds it, all without privileges, as root and as a user, in containers without CAP_SYS_ADMIN as well:
//   rlimits            CPU time, memory (address space), size of a file, open files
//   no capabilities    and no_new_privs, so that none come back
//   seccomp            no process, no socket, no foreign signal; syscall_filter.h has the list
//   Landlock           it reads Python's folders and its own; it writes its own alone. A kernel without Landlock (older than
//                      6.2): the filter lets it open files for reading alone, then it has no private folder to write to;
//                      the rule `code` warns of that, or refuses
//   a sized tmpfs      bytes and number of files, where this process may mount (CAP_SYS_ADMIN); elsewhere its parent counts them
//   its parent         wall time, bytes of output
// docs/design/sandbox.md says why so, and what is left.

#include <cstdint>
#include <string>

#include "tandem/reward/backend/process.h"

namespace tandem::reward {

struct SandboxLimits {
  double wall_s = 10;                        ///< also bounds the CPU time, over all threads
  int64_t memory_bytes = int64_t{512} << 20;
  int64_t output_bytes = int64_t{1} << 20;   ///< standard output and error together
  int64_t file_bytes = int64_t{16} << 20;    ///< of one file, and of all files together
};

constexpr int kNeededLandlock = 3;  ///< version of its interface, of Linux 6.2
int landlock_version();             ///< of this kernel; 0: none

enum class FileGuard { kAuto, kLandlock, kReadOnly };
enum class FileQuota { kAuto, kMounted, kCounted };

struct Program {
  std::string source;
  std::string input;        ///< on its standard input
  std::string question;     ///< JSON that sandbox.py answers once the source has run; "" for none
  std::string tests;        ///< Python that judge.py runs in a process of its own, against the source's functions; "" for none
};

struct ProgramRun {
  bool finished = false;    ///< ended by itself, within the limits, with exit code 0; with tests: they were judged within the limits
  std::string why;          ///< what ended it otherwise: "time limit", "output limit", "exit code 1", ...
  std::string output;       ///< standard output
  std::string errors;       ///< the start of standard error
  std::string answer;       ///< the line that answers the question, or the judge's verdict; "" if none came
};

/// Threads    run() from any number of threads. The thread that calls it must not end meanwhile.
/// Blocking   run() returns within the wall time and some milliseconds.
/// Errors     the constructor tries the walls out: UserError where Python is missing or a wall does not hold, since nothing is
///            ever run without them. run(): a bad program is a ProgramRun, never an error; PeerError if this process runs out
///            of descriptors or memory.
class Sandbox {
 public:
  Sandbox(const std::string& python, const SandboxLimits& limits, FileGuard guard = FileGuard::kAuto, FileQuota quota = FileQuota::kAuto);

  ProgramRun run(const Program& program) const;
  bool has_private_folder() const { return landlock_ >= kNeededLandlock; }
  bool has_quota() const { return !confinement_.quota.empty(); }

 private:
  ProgramRun run(const Program& program, const SandboxLimits& limits) const;
  void find_python(const std::string& python);
  void add_quota(FileQuota wanted);
  void prove_walls() const;
  Descriptor rules_for(const std::string& folder) const;
  Launch launch_of(const Confinement& confinement, const std::string& folder, const std::string& mode) const;
  Process judge(Launch launch, const std::string& tests, Descriptor channel, Descriptor& verdict) const;

  SandboxLimits limits_;
  int landlock_ = 0;                       // version of its interface; 0: none
  std::string python_;                     // full path
  std::string program_code_, judge_code_;  // sandbox.py and judge.py, compiled by it
  std::vector<std::string> readable_;      // folders and files
  Confinement confinement_;                // without the rule set, which each program has for itself
};

}  // namespace tandem::reward
