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

#include "tandem/base/error.h"
#include "tandem/reward/backend/private_folder.h"
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

// What is not there needs no rule.
void permit(const Descriptor& rules, const std::string& path, uint64_t access) {
  const Descriptor at(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!at.is_open()) return;
  if (!fs::is_directory(path)) access &= kOnFiles;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = access;
  rule.parent_fd = at.number();
  if (syscall(SYS_landlock_add_rule, rules.number(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
    throw PeerError("sandbox: Landlock takes no rule for " + path + ": " + std::strerror(errno));
}

// A value may take so many times the bytes of the message that it came in.
constexpr int64_t kMemoryPerMessage = 16;

// Runs the compiled half in descriptor 5.
constexpr const char* kLoader = "import marshal, os\nwith os.fdopen(5, 'rb') as file: code = file.read()\nexec(marshal.loads(code))";

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) bytes += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
  return bytes;
}

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

int landlock_version() {
  const auto version = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version < 0 ? 0 : static_cast<int>(version);
}

Sandbox::Sandbox(const std::string& python, const SandboxLimits& limits, FileGuard guard, FileQuota quota) : limits_(limits) {
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
  if (has_private_folder() && quota != FileQuota::kCounted) add_quota(quota);
  prove_walls();
}

// Asks the interpreter, which is trusted, where it lives, and to compile our half: to do so for each program takes longer than most run.
void Sandbox::find_python(const std::string& python) {
  auto [reader, writer] = pipe_pair();
  const std::string ask =
      "import json, marshal, sys\n"
      "code = [marshal.dumps(compile(source, 'tandem', 'exec')).hex() for source in sys.argv[1:]]\n"
      "print(json.dumps(code + [sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix] + sys.path))";
  const std::string wire(script("wire.py"));
  const std::string ours = wire + std::string(script("sandbox.py")), judges = wire + std::string(script("judge.py"));
  Process process({{python, "-I", "-c", ask, ours, judges}, {}, true, {-1, writer.number(), 2}, "", nullptr});
  writer.close();
  const std::string said = read_all(reader, kProbeS);
  const int status = process.wait_or_end(kProbeS);
  auto paths = nlohmann::json::parse(said, nullptr, false);
  if (status != 0 || !paths.is_array())
    throw UserError("reward.python_executable", "`" + python + "` does not run Python: " + status_text(status),
                    "expected Python 3.8 or newer");
  program_code_ = bytes_of_hex(paths[0]);
  judge_code_ = bytes_of_hex(paths[1]);
  paths.erase(paths.begin(), paths.begin() + 2);
  python_ = paths[0];
  readable_ = {"/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/openssl.cnf", "/sys/devices/system/cpu"};
  for (const std::string path : paths) {
    const std::string real = fs::weakly_canonical(path.empty() ? "." : path).string();
    if (!path.empty() && real != "/") readable_.push_back(path == python_ ? path : real);
  }
}

// A sized tmpfs for each program, where this process may mount one: it is tried out.
void Sandbox::add_quota(FileQuota wanted) {
  const PrivateFolder folder;
  const Descriptor rules = rules_for(folder.path());
  Confinement tried = confinement_;
  tried.quota = "mode=700,nr_inodes=" + std::to_string(kMaxFiles) + ",size=" + std::to_string(limits_.file_bytes);
  tried.folder_access = kFolderOfItsOwn;
  tried.landlock = rules.number();
  Launch launch = launch_of(tried, folder.path(), "");
  launch.fds = {-1, -1, -1, -1, -1, -1};  // an empty program
  try {
    Process(launch).wait_or_end(kProbeS);
  } catch (const UserError&) {
    if (wanted == FileQuota::kMounted) throw;
    return;
  }
  confinement_.quota = tried.quota;
  confinement_.folder_access = kFolderOfItsOwn;
}

Descriptor Sandbox::rules_for(const std::string& folder) const {
  LandlockRules attributes{kFolderOfItsOwn | kSpecialFiles, landlock_ >= 4 ? kConnectAndBind : 0, landlock_ >= 6 ? kScopes : 0};
  const size_t bytes = landlock_ >= 6 ? 24 : landlock_ >= 4 ? 16 : 8;
  Descriptor rules(static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, bytes, 0)));
  if (!rules.is_open()) throw PeerError(std::string("sandbox: no Landlock rule set: ") + std::strerror(errno));
  for (const std::string& path : readable_) permit(rules, path, kRead);
  for (const char* device : {"/dev/zero", "/dev/random", "/dev/urandom"}) permit(rules, device, kReadFile);
  permit(rules, "/dev/null", kReadFile | kWriteFile | kTruncate);
  permit(rules, folder, kFolderOfItsOwn);
  return rules;
}

ProgramRun Sandbox::run(const Program& program) const { return run(program, limits_); }

// Without site-packages, which wire.py sets up once a program asks for one of them.
Launch Sandbox::launch_of(const Confinement& confinement, const std::string& folder, const std::string& mode) const {
  Launch launch;
  launch.argv = {python_, "-I", "-S", "-B", "-c", kLoader, mode};
  launch.env = environment(folder);
  launch.folder = folder;
  launch.confinement = &confinement;
  return launch;
}

// Its verdict can be read from `verdict`.
Process Sandbox::judge(Launch launch, const std::string& tests, Descriptor channel, Descriptor& verdict) const {
  auto [reader, writer] = pipe_pair();
  const Descriptor source = bytes_to_read(tests), code = bytes_to_read(judge_code_);
  launch.fds = {-1, -1, -1, source.number(), channel.number(), code.number(), writer.number()};
  verdict = std::move(reader);
  return Process(launch);
}

ProgramRun Sandbox::run(const Program& program, const SandboxLimits& limits) const {
  const PrivateFolder folder;
  const Descriptor rules = has_private_folder() ? rules_for(folder.path()) : Descriptor();
  Confinement confinement = confinement_;
  confinement.landlock = rules.number();
  const Descriptor input = bytes_to_read(program.input), source = bytes_to_read(program.source), code = bytes_to_read(program_code_);
  auto [output_reader, output_writer] = pipe_pair();
  auto [errors_reader, errors_writer] = pipe_pair();
  auto [ours, theirs] = socket_pair();
  const bool judged = !program.tests.empty();
  Launch launch = launch_of(confinement, folder.path(), judged ? "serve" : program.question.empty() ? "run" : "ask");
  launch.fds = {input.number(), output_writer.number(), errors_writer.number(), source.number(), theirs.number(), code.number()};
  Process process(launch), judging;
  for (Descriptor* fd : {&output_writer, &errors_writer, &theirs}) fd->close();
  if (judged) {
    const Descriptor mounts = has_quota() ? process.mounts() : Descriptor();
    confinement.mounts = mounts.number();
    launch = launch_of(confinement, folder.path(), std::to_string(limits.memory_bytes / kMemoryPerMessage));
    judging = judge(std::move(launch), program.tests, std::move(ours), ours);
  }
  const std::string counted = has_private_folder() && !has_quota() ? folder.path() : "";
  ProgramWatch watch({std::move(output_reader), std::move(errors_reader), std::move(ours)}, limits, counted);
  return judged ? watch.await_verdict(std::move(process)) : watch.follow(std::move(process), program.question);
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
