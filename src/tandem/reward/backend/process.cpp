// SPDX-License-Identifier: Apache-2.0
// clone with CLONE_VM and CLONE_VFORK, as posix_spawn does it: the child borrows our memory until exec. Between the two it makes
// system calls and nothing else, on a stack of its own. The parent prepares what it needs.
#include "tandem/reward/backend/process.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::reward {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // execvpe keeps the whole PATH entry and argv there
constexpr double kKeeperPatienceS = 6;     // for a keeper of orphans to end them; it takes some 5 at most
constexpr int kFirstFreeFd = 64;           // descriptors are moved above the child's own before they are put in place

[[noreturn]] void throw_system(const std::string& what) {
  throw PeerError("reward worker: " + what + ": " + std::strerror(errno));
}

struct Child {
  char* const* argv = nullptr;
  char* const* env = nullptr;
  std::vector<int> fds;
  const char* folder = nullptr;
  Confinement* confinement = nullptr;
  sigset_t mask{};
  pid_t parent = 0;
  bool keeps_orphans = false;
  int error = 0;             // the child writes, the parent reads: they share memory
  const char* step = "";
};

int limit(int resource, int64_t soft, int64_t hard) {
  rlimit value{static_cast<rlim_t>(soft), static_cast<rlim_t>(hard)};
  return setrlimit(static_cast<__rlimit_resource>(resource), &value);
}

int drop_capabilities() {
  for (int capability = 0; capability <= 63; ++capability) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);  // what there is
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  return static_cast<int>(syscall(SYS_capset, &header, none));
}

// A tmpfs of its own on its folder, which nobody else sees and which goes with the last process that does; or that of another child.
const char* enter_mounts(const Confinement& c, const char* folder) {
  if (c.mounts >= 0 && setns(c.mounts, CLONE_NEWNS) != 0) return "setns";
  if (c.quota.empty() || c.mounts >= 0) return nullptr;
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "mounts of its own";
  if (mount("tandem-code", folder, "tmpfs", MS_NOSUID | MS_NODEV, c.quota.c_str()) != 0) return "tmpfs";
  landlock_path_beneath_attr rule{};
  rule.allowed_access = c.folder_access;
  rule.parent_fd = open(folder, O_PATH | O_CLOEXEC);
  const auto failed = syscall(SYS_landlock_add_rule, c.landlock, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  close(rule.parent_fd);
  return failed ? "Landlock on its tmpfs" : nullptr;
}

// Returns the step that failed, or null. The filter comes last: it allows less than these calls need.
const char* confine(Confinement& c) {
  if (limit(RLIMIT_CPU, c.cpu_s, c.cpu_s + 1) || limit(RLIMIT_AS, c.memory_bytes, c.memory_bytes) ||
      limit(RLIMIT_FSIZE, c.file_bytes, c.file_bytes) || limit(RLIMIT_NOFILE, c.open_files, c.open_files) || limit(RLIMIT_CORE, 0, 0))
    return "setrlimit";
  if (drop_capabilities() != 0) return "capset";
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs";
  if (c.landlock >= 0 && syscall(SYS_landlock_restrict_self, c.landlock, 0) != 0) return "Landlock";
  const auto pid = static_cast<uint32_t>(syscall(SYS_getpid));
  for (size_t slot : c.pid_slots) c.filter[slot].k = pid;
  return nullptr;
}

const char* filter_calls(Confinement& c) {
  sock_fprog program{static_cast<unsigned short>(c.filter.size()), c.filter.data()};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0 ? nullptr : "seccomp";
}

const char* place_descriptors(const Child& child) {
  const int num = static_cast<int>(child.fds.size());
  for (int i = 0; i < num; ++i)
    if (dup2(child.fds[static_cast<size_t>(i)], i) < 0) return "dup2";
  if (syscall(SYS_close_range, num, ~0u, 0) == 0) return nullptr;
  for (int fd = num; fd < 65536; ++fd) close(fd);  // before Linux 5.9
  return nullptr;
}

const char* prepare(Child& child) {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);  // refused for SIGKILL and SIGSTOP, which have no other
  }
  if (setsid() < 0) return "setsid";
  if (child.confinement)
    if (const char* step = enter_mounts(*child.confinement, child.folder)) return step;
  if (child.folder && chdir(child.folder) != 0) return "chdir";
  if (child.confinement)
    if (const char* step = confine(*child.confinement)) return step;
  if (child.keeps_orphans && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return "PR_SET_CHILD_SUBREAPER";
  if (prctl(PR_SET_PDEATHSIG, child.keeps_orphans ? SIGTERM : SIGKILL, 0, 0, 0) != 0) return "PR_SET_PDEATHSIG";
  if (syscall(SYS_getppid) != child.parent) return "start: the parent has ended";
  if (const char* step = place_descriptors(child)) return step;
  sigprocmask(SIG_SETMASK, &child.mask, nullptr);
  return child.confinement ? filter_calls(*child.confinement) : nullptr;
}

__attribute__((no_sanitize("address"))) int run_child(void* argument) {
  Child& child = *static_cast<Child*>(argument);
  child.step = prepare(child);
  if (!child.step) {
    child.step = "exec";
    execvpe(child.argv[0], child.argv, child.env);
  }
  child.error = errno == 0 ? EINVAL : errno;
  syscall(SYS_exit_group, 127);
  return 127;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  return out;
}

std::vector<char*> environment_of(const Launch& launch) {
  std::vector<char*> env = pointers(launch.env);
  for (char** entry = environ; launch.inherit_env && *entry; ++entry) env.push_back(*entry);
  env.push_back(nullptr);
  return env;
}

// Moves the wanted descriptors out of the way of 0, 1, 2, ..., so that putting one in place overwrites none.
std::vector<Descriptor> lifted(const std::vector<int>& fds) {
  std::vector<Descriptor> out;
  for (int fd : fds) {
    const Descriptor null = fd >= 0 ? Descriptor() : Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC));
    out.emplace_back(fcntl(fd >= 0 ? fd : null.number(), F_DUPFD_CLOEXEC, kFirstFreeFd));
    if (!out.back().is_open()) throw_system("no descriptor");
  }
  return out;
}

pid_t start(Child& child) {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) throw_system("no memory for a stack");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &child.mask);  // no handler of ours may run in the child
  sigset_t before = child.mask;
  sigemptyset(&child.mask);
  const pid_t pid = clone(run_child, static_cast<char*>(stack) + kStackBytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  munmap(stack, kStackBytes);
  errno = error;
  if (pid < 0) throw_system("cannot start a process");
  return pid;
}

}  // namespace

void never_block(const Descriptor& fd) { fcntl(fd.number(), F_SETFL, fcntl(fd.number(), F_GETFL) | O_NONBLOCK); }

Process::Process(const Launch& launch) {
  std::vector<char*> argv = pointers(launch.argv), env = environment_of(launch);
  argv.push_back(nullptr);
  const std::vector<Descriptor> fds = lifted(launch.fds);
  Confinement confinement;  // the child writes its process id into the filter: each has its own
  Child child{argv.data(), env.data(), {}, launch.folder.empty() ? nullptr : launch.folder.c_str()};
  for (const Descriptor& fd : fds) child.fds.push_back(fd.number());
  if (launch.confinement) child.confinement = &(confinement = *launch.confinement);
  child.parent = getpid();
  child.keeps_orphans = keeps_orphans_ = launch.keeps_orphans;
  pid_ = start(child);
  if (child.error == 0) return;
  end();
  throw UserError(launch.argv.front(), std::string("cannot be started (") + child.step + "): " + std::strerror(child.error),
                  "expected a program on PATH or the path of one");
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    keeps_orphans_ = other.keeps_orphans_;
  }
  return *this;
}

Descriptor Process::mounts() const {
  return Descriptor(pid_ > 0 ? open(("/proc/" + std::to_string(pid_) + "/ns/mnt").c_str(), O_RDONLY | O_CLOEXEC) : -1);
}

void Process::kill_group() const noexcept {
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
}

void Process::stop() const noexcept {
  if (pid_ <= 0) return;
  if (keeps_orphans_) kill(pid_, SIGTERM);
  else kill_group();
}

int Process::end() noexcept {
  if (pid_ <= 0) return 0;
  if (keeps_orphans_) {
    stop();
    ends_within(kKeeperPatienceS);
  }
  kill_group();  // a process that has ended keeps its number, and its status, until it is reaped
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

bool Process::ends_within(double seconds) const noexcept {
  siginfo_t info{};
  for (const Deadline deadline = Deadline::after_s(seconds); !deadline.passed();) {
    info.si_pid = 0;
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

int Process::wait_or_end(double seconds) noexcept {
  if (pid_ <= 0) return 0;
  ends_within(seconds);
  return end();
}

std::string status_text(int status) {
  if (!WIFSIGNALED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  const char* name = sigdescr_np(WTERMSIG(status));
  return "signal " + std::to_string(WTERMSIG(status)) + (name ? std::string(" (") + name + ")" : "");
}

std::pair<Descriptor, Descriptor> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_system("no socket pair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::pair<Descriptor, Descriptor> pipe_pair() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_system("no pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string read_all(const Descriptor& fd, double seconds) {
  constexpr int kTickMs = 20;
  const Deadline deadline = Deadline::after_s(seconds);
  std::string text;
  char buffer[4096];
  while (!deadline.passed()) {
    pollfd one{fd.number(), POLLIN, 0};
    if (poll(&one, 1, kTickMs) <= 0) continue;
    const ssize_t got = read(fd.number(), buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

Descriptor bytes_to_read(const std::string& bytes) {
  Descriptor fd(memfd_create("input", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) throw_system("no memory file");
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = write(fd.number(), bytes.data() + at, bytes.size() - at);
    if (written < 0 && errno != EINTR) throw_system("cannot fill a memory file");
    if (written > 0) at += static_cast<size_t>(written);
  }
  lseek(fd.number(), 0, SEEK_SET);
  fcntl(fd.number(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return fd;
}

}  // namespace tandem::reward
