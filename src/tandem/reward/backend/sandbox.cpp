// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/backend/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/asset.h"
#include "tandem/base/error.h"
#include "tandem/reward/backend/program_watch.h"
#include "tandem/reward/backend/scripts.h"
#include "tandem/reward/backend/syscall_filter.h"

namespace tandem::reward {

namespace fs = std::filesystem;

namespace {

constexpr double kProbeS = 60;  // the first start of an interpreter from a cold disk

// The kernel's structures as of Linux 6.12, which older headers lack parts of; older kernels are given their shorter forms.
struct LandlockRules {
  uint64_t files, network, scopes;
};
constexpr uint64_t kScopes = 3;                       // abstract sockets, signals
constexpr uint64_t kConnectAndBind = 3;
constexpr uint64_t kExecute = 1, kWriteFile = 2, kReadFile = 4, kReadFolder = 8;
constexpr uint64_t kTruncate = 1 << 14;
constexpr uint64_t kRead = kExecute | kReadFile | kReadFolder;
constexpr uint64_t kOnFiles = kExecute | kWriteFile | kReadFile | kTruncate;  // of rules on what is no folder
constexpr uint64_t kFolderOfItsOwn =
    kRead | kWriteFile | kTruncate | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR |
    LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER;
constexpr uint64_t kSpecialFiles =
    LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK;

int landlock_version() {
  const auto version = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version < 0 ? 0 : static_cast<int>(version);
}

// What is not there needs no rule.
void permit(const Fd& rules, const std::string& path, uint64_t access) {
  const Fd at(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!at) return;
  if (!fs::is_directory(path)) access &= kOnFiles;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = access;
  rule.parent_fd = at.get();
  if (syscall(SYS_landlock_add_rule, rules.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
    throw PeerError("sandbox: Landlock takes no rule for " + path + ": " + std::strerror(errno));
}

/// A folder of one program, removed with all it holds.
class PrivateFolder {
 public:
  PrivateFolder() : path_((fs::temp_directory_path() / "tandem-code-XXXXXX").string()) {
    if (!mkdtemp(path_.data())) throw PeerError("sandbox: no folder " + path_ + ": " + std::strerror(errno));
  }
  ~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> environment(const std::string& folder) {
  return {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + folder, "TMPDIR=" + folder,    "LANG=C.UTF-8",
          "PYTHONHASHSEED=0",                  "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1"};
}

// Everything a program must not be able to do, tried by a program. Prints what worked.
constexpr const char* kProbe = R"(
import os, socket
def tried(name, action):
    try:
        action()
        print(name, end="; ")
    except (OSError, RuntimeError):
        pass
tried("a new process", lambda: os.fork() or os._exit(0))
tried("a socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
tried("a local socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
tried("a file outside its folder", lambda: open(OUTSIDE, "w"))
tried("a signal to its parent", lambda: os.kill(os.getppid(), 0))
)";

}  // namespace

Sandbox::Sandbox(const std::string& python, const SandboxLimits& limits, FileGuard guard) : limits_(limits) {
  landlock_ = guard == FileGuard::kReadOnly ? 0 : landlock_version();
  if (guard == FileGuard::kLandlock && !has_private_folder())
    throw UserError("sandbox", "this kernel has no Landlock of version 3", "expected Linux 6.2 or newer");
  const auto cpu_s = static_cast<int64_t>(std::ceil(limits.wall_s)) + 1;
  confinement_.cpu_s = cpu_s;
  confinement_.memory_bytes = limits.memory_bytes;
  confinement_.file_bytes = limits.file_bytes;
  confinement_.open_files = 64;
  add_syscall_filter(confinement_, has_private_folder());
  find_python(python);
  prove_walls();
}

// Asks the interpreter, which is trusted, where it lives.
void Sandbox::find_python(const std::string& python) {
  auto [reader, writer] = pipe_pair();
  const std::string ask =
      "import json, sys; "
      "print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix] + sys.path))";
  Process process({{python, "-I", "-c", ask}, {}, true, {-1, writer.get(), 2}, "", nullptr});
  writer.close();
  const std::string said = read_all(reader, kProbeS);
  const int status = process.wait_or_end(kProbeS);
  const auto paths = nlohmann::json::parse(said, nullptr, false);
  if (status != 0 || !paths.is_array())
    throw UserError("reward.python_executable", "`" + python + "` does not run Python: " + status_text(status),
                    "expected Python 3.8 or newer");
  python_ = paths[0];
  readable_ = {"/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/openssl.cnf", "/sys/devices/system/cpu"};
  for (const std::string path : paths) {
    const std::string real = fs::weakly_canonical(path.empty() ? "." : path).string();
    if (!path.empty() && real != "/") readable_.push_back(path == python_ ? path : real);
  }
}

Fd Sandbox::rules_for(const std::string& folder) const {
  LandlockRules attributes{kFolderOfItsOwn | kSpecialFiles, landlock_ >= 4 ? kConnectAndBind : 0, landlock_ >= 6 ? kScopes : 0};
  const size_t bytes = landlock_ >= 6 ? 24 : landlock_ >= 4 ? 16 : 8;
  Fd rules(static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, bytes, 0)));
  if (!rules) throw PeerError(std::string("sandbox: no Landlock rule set: ") + std::strerror(errno));
  for (const std::string& path : readable_) permit(rules, path, kRead);
  for (const char* device : {"/dev/zero", "/dev/random", "/dev/urandom"}) permit(rules, device, kReadFile);
  permit(rules, "/dev/null", kReadFile | kWriteFile | kTruncate);
  permit(rules, folder, kFolderOfItsOwn);
  return rules;
}

ProgramRun Sandbox::run(const Program& program) const { return run(program, limits_); }

ProgramRun Sandbox::run(const Program& program, const SandboxLimits& limits) const {
  const PrivateFolder folder;
  const Fd rules = has_private_folder() ? rules_for(folder.path()) : Fd();
  Confinement confinement = confinement_;
  confinement.landlock = rules.get();
  const Fd input = bytes_to_read(program.input), source = bytes_to_read(program.source);
  auto [output_reader, output_writer] = pipe_pair();
  auto [errors_reader, errors_writer] = pipe_pair();
  auto [ours, theirs] = socket_pair();
  Launch launch;
  launch.argv = {python_, "-I", "-B", "-c", std::string(script("sandbox.py")), program.question.empty() ? "run" : "ask"};
  launch.env = environment(folder.path());
  launch.fds = {input.get(), output_writer.get(), errors_writer.get(), source.get(), theirs.get()};
  launch.folder = folder.path();
  launch.confinement = &confinement;
  Process process(launch);
  for (Fd* fd : {&output_writer, &errors_writer, &theirs}) fd->close();
  ProgramWatch watch({std::move(output_reader), std::move(errors_reader), std::move(ours)}, limits, folder.path());
  return watch.follow(std::move(process), program.question);
}

void Sandbox::prove_walls() const {
  const PrivateFolder outside;
  const std::string file = (fs::path(outside.path()) / "made").string();
  Program probe;
  probe.source = "OUTSIDE = " + nlohmann::json(file).dump() + kProbe;
  SandboxLimits patient = limits_;  // Python may start slowly on a busy machine; that says nothing about the walls
  patient.wall_s = std::max(limits_.wall_s, 60.0);
  const ProgramRun run = this->run(probe, patient);
  const std::string remedy = "expected a kernel that confines programs (seccomp, Landlock); or take another rule";
  if (!run.finished)
    throw UserError("reward.rule code", "the sandbox cannot run Python: " + run.why + " " + run.errors,
                    "raise reward.code_memory_mib or reward.code_timeout_s, or name another reward.python_executable");
  if (!run.output.empty()) throw UserError("reward.rule code", "a program in the sandbox could use " + run.output, remedy);
  if (fs::exists(file)) throw UserError("reward.rule code", "a program in the sandbox could write " + file, remedy);
}

}  // namespace tandem::reward
