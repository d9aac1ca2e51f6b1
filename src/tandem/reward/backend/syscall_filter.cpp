// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/syscall_filter.h"

#include <asm/ioctls.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <initializer_list>

#include "tandem/base/error.h"

namespace tandem::reward {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Reading, memory, threads, time, waiting, and what interpreters ask about themselves.
constexpr int kAllowed[] = {
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_close, SYS_close_range,
    SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_fstatfs, SYS_statfs, SYS_faccessat, SYS_faccessat2, SYS_readlinkat,
    SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_dup, SYS_dup3, SYS_pipe2, SYS_flock, SYS_fadvise64, SYS_fsync,
    SYS_fdatasync, SYS_ftruncate, SYS_sendfile, SYS_copy_file_range, SYS_splice, SYS_tee, SYS_umask,
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_msync, SYS_mincore, SYS_mlock, SYS_munlock,
    SYS_execve, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list,
    SYS_futex, SYS_rseq, SYS_membarrier, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_getpriority, SYS_getcpu,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
    SYS_sigaltstack, SYS_restart_syscall, SYS_getpid, SYS_getppid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid,
    SYS_getgroups, SYS_getresuid, SYS_getresgid, SYS_getpgid, SYS_getsid, SYS_uname, SYS_sysinfo, SYS_getrandom, SYS_times,
    SYS_getrusage, SYS_getrlimit, SYS_capget, SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_gettimeofday,
    SYS_nanosleep, SYS_setitimer, SYS_getitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun,
    SYS_timer_delete, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_ppoll, SYS_pselect6, SYS_epoll_create1,
    SYS_epoll_ctl, SYS_epoll_pwait, SYS_eventfd2, SYS_signalfd4, SYS_recvfrom, SYS_recvmsg, SYS_sendto, SYS_sendmsg,
    SYS_getsockopt, SYS_getsockname, SYS_getpeername, SYS_shutdown,
#if defined(__x86_64__)  // older calls that newer architectures never had
    SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_getdents, SYS_pipe, SYS_dup2, SYS_poll, SYS_select, SYS_epoll_wait,
    SYS_epoll_create, SYS_eventfd, SYS_arch_prctl, SYS_getpgrp, SYS_time, SYS_alarm, SYS_pause,
#endif
};

// What changes folders; Landlock keeps it within the private one.
constexpr int kChanging[] = {
    SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_symlinkat, SYS_linkat, SYS_truncate,
#if defined(__x86_64__)
    SYS_mkdir, SYS_rmdir, SYS_unlink, SYS_rename, SYS_renameat, SYS_symlink, SYS_link, SYS_creat,
#endif
};

constexpr std::initializer_list<uint32_t> kFcntl = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD,  F_GETFL,
                                                    F_SETFL, F_GETLK,         F_SETLK, F_SETLKW};
constexpr std::initializer_list<uint32_t> kIoctl = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX};

uint32_t low_word(int argument) {  // both processors are little endian
  return static_cast<uint32_t>(offsetof(seccomp_data, args)) + 8u * static_cast<uint32_t>(argument);
}

class Filter {
 public:
  explicit Filter(Confinement& confinement) : confinement_(confinement), code_(confinement.filter) {
    load(offsetof(seccomp_data, arch));
    jump(BPF_JEQ, kArchitecture, 1, 0);
    give(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
    jump(BPF_JGE, 0x40000000, 0, 1);  // the x32 numbers of x86-64
    refuse(ENOSYS);
  }

  void allow(int call) {
    jump(BPF_JEQ, static_cast<uint32_t>(call), 0, 1);
    give(SECCOMP_RET_ALLOW);
  }
  void refuse(int call, int error) {
    jump(BPF_JEQ, static_cast<uint32_t>(call), 0, 1);
    refuse(error);
  }
  /// Allowed if an argument is one of `values`.
  void allow_values(int call, int argument, std::initializer_list<uint32_t> values) {
    begin(call, argument, 2 * values.size() + 1);
    for (uint32_t value : values) {
      jump(BPF_JEQ, value, 0, 1);
      give(SECCOMP_RET_ALLOW);
    }
    refuse(EPERM);
  }
  /// Allowed if an argument is the program's own process id.
  void allow_self(int call) {
    begin(call, 0, 3);
    confinement_.pid_slots.push_back(code_.size());
    jump(BPF_JEQ, 0, 0, 1);
    give(SECCOMP_RET_ALLOW);
    refuse(EPERM);
  }
  /// Allowed if any (or, negated, none) of `bits` is set in an argument.
  void allow_bits(int call, int argument, uint32_t bits, bool any) {
    begin(call, argument, 3);
    jump(BPF_JSET, bits, any ? 0 : 1, any ? 1 : 0);
    give(SECCOMP_RET_ALLOW);
    refuse(EPERM);
  }
  void refuse(int error) { give(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)); }

 private:
  // Passes over the next instructions, among them the load, unless the call is this one. Each such part ends with a verdict.
  void begin(int call, int argument, size_t num_checks) {
    jump(BPF_JEQ, static_cast<uint32_t>(call), 0, static_cast<uint8_t>(num_checks + 1));
    load(low_word(argument));
  }
  void load(size_t offset) { code_.push_back({BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<uint32_t>(offset)}); }
  void jump(int test, uint32_t value, uint8_t if_true, uint8_t if_false) {
    code_.push_back({static_cast<uint16_t>(BPF_JMP | test | BPF_K), if_true, if_false, value});
  }
  void give(uint32_t verdict) { code_.push_back({BPF_RET | BPF_K, 0, 0, verdict}); }

  Confinement& confinement_;
  std::vector<sock_filter>& code_;
};

void allow_files(Filter& filter, bool may_write) {
  constexpr uint32_t kWriting = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  const auto allow_open = [&](int call, int flags) {
    may_write ? filter.allow(call) : filter.allow_bits(call, flags, kWriting, false);
  };
  allow_open(SYS_openat, 2);
#if defined(__x86_64__)
  allow_open(SYS_open, 1);
#endif
  if (!may_write) return;
  for (int call : kChanging) filter.allow(call);
}

}  // namespace

void add_syscall_filter(Confinement& confinement, bool may_write_files) {
  if (kArchitecture == 0 || prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
    throw UserError("reward.rule code", "this kernel or processor has no seccomp filter, so a program cannot be confined",
                    "run on Linux on x86-64 or aarch64 with CONFIG_SECCOMP_FILTER, or take another rule");
  Filter filter(confinement);
  for (int call : kAllowed) filter.allow(call);
  allow_files(filter, may_write_files);
  filter.allow_bits(SYS_clone, 0, CLONE_THREAD, true);
  filter.refuse(SYS_clone3, ENOSYS);  // its flags cannot be seen; the C library then uses clone
  filter.refuse(SYS_openat2, ENOSYS);
  filter.allow_self(SYS_kill);
  filter.allow_self(SYS_tgkill);
  filter.allow_values(SYS_fallocate, 1, {0});  // otherwise blocks behind the end, which no limit on its size holds
  filter.allow_values(SYS_prlimit64, 0, {0});
  filter.allow_values(SYS_prctl, 0, {PR_SET_NAME, PR_GET_NAME});
  filter.allow_values(SYS_socketpair, 0, {AF_UNIX});
  filter.allow_values(SYS_fcntl, 1, kFcntl);  // not F_SETOWN, which can have a signal sent to any process
  filter.allow_values(SYS_ioctl, 1, kIoctl);
  filter.refuse(EPERM);
}

}  // namespace tandem::reward
