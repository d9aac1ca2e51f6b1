// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "python_file.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/private_folder.h"
#include "tandem/reward/backend/sandbox.h"
#include "tandem/reward/code_rule.h"
#include "tandem/reward/code_tests.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMib = int64_t{1} << 20;

ProgramRun run(const std::string& source, FileGuard guard = FileGuard::kAuto, double wall_s = 5) {
  const Sandbox sandbox("python3", {wall_s, 256 * kMib, kMib, 4 * kMib}, guard);
  return sandbox.run({source, "12 30\n", "", ""});
}

const std::vector<FileGuard>& guards() {
  static const std::vector<FileGuard> all = Sandbox("python3", {}).has_private_folder()
                                                ? std::vector<FileGuard>{FileGuard::kLandlock, FileGuard::kReadOnly}
                                                : std::vector<FileGuard>{FileGuard::kReadOnly};
  return all;
}

double seconds(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Sandbox, AProgramReadsItsInputAndPrints) {
  for (FileGuard guard : guards()) {
    const ProgramRun r = run("import sys, math, json, threading\na, b = map(int, input().split())\nprint(a + b)\n"
                             "t = threading.Thread(target=lambda: print('thread'))\nt.start(); t.join()\nprint('err', file=sys.stderr)",
                             guard);
    EXPECT_TRUE(r.finished) << r.why << r.errors;
    EXPECT_EQ(r.output, "42\nthread\n");
    EXPECT_EQ(r.errors, "err\n");
  }
  const ProgramRun failed = run("print(1)\nraise SystemExit(3)");
  EXPECT_FALSE(failed.finished);
  EXPECT_EQ(failed.why, "exit code 3");
}

TEST(Sandbox, AnEndlessLoopIsStoppedInTime) {
  for (const std::string body : {"pass", "print(end='')", "import time; time.sleep(1)"}) {
    ProgramRun r;
    EXPECT_LT(seconds([&] { r = run("while True:\n    " + body + "\n", FileGuard::kAuto, 1); }), 3) << body;
    EXPECT_FALSE(r.finished);
    EXPECT_EQ(r.why, "time limit");
  }
  const ProgramRun stubborn = run("import os, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
                                  "os.close(0); os.close(1); os.close(2)\nwhile True: pass\n", FileGuard::kAuto, 1);
  EXPECT_EQ(stubborn.why, "time limit") << "its output is closed, it lives on";
}

TEST(Sandbox, AForkBombStartsNothing) {
  for (FileGuard guard : guards()) {
    const ProgramRun r = run(R"(
import os, subprocess, multiprocessing, _posixsubprocess
made = 0
def tried(action):
    global made
    try:
        action()
        made += 1
    except OSError:
        pass
def child():
    if os.fork() == 0:
        while True: os.fork()
for _ in range(100):
    tried(child)
tried(lambda: os.posix_spawn("/bin/true", ["true"], {}))
tried(lambda: subprocess.run(["/bin/true"]))
tried(lambda: multiprocessing.Process(target=print).start())
print(made)
)", guard);
    EXPECT_EQ(r.output, "0\n") << r.why << r.errors;
  }
  const ProgramRun threads = run("import threading, time\nn = 0\ntry:\n    while True:\n"
                                 "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n        n += 1\n"
                                 "except RuntimeError:\n    print(n < 200)\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n");
  EXPECT_EQ(threads.output, "True\n") << "threads share the memory limit: " << threads.why << threads.errors;
}

TEST(Sandbox, MemoryIsLimited) {
  const ProgramRun refused = run("try:\n    x = bytearray(10 * 2**30)\nexcept MemoryError:\n    print('refused')\n");
  EXPECT_EQ(refused.output, "refused\n") << refused.why << refused.errors;
  const ProgramRun grows = run("x = []\nwhile True:\n    x.append(bytearray(2**20))\n");
  EXPECT_FALSE(grows.finished);
  EXPECT_NE(grows.why, "time limit");
  const ProgramRun maps = run("import mmap\nx = []\ntry:\n    while True:\n        x.append(mmap.mmap(-1, 2**24))\n"
                              "except OSError:\n    print(len(x) < 16)\n");
  EXPECT_EQ(maps.output, "True\n") << maps.why << maps.errors;
}

TEST(Sandbox, NothingIsWrittenOutsideTheFolderOfTheProgram) {
  const PythonFile outside("VALUE = 1\n");
  const std::string set = "OUT = '" + outside.folder().string() + "'\nFILE = '" + outside.path() + "'\n";
  for (FileGuard guard : guards()) {
    const ProgramRun r = run(set + R"(
import os, pathlib, shutil, tempfile
changed = []
def tried(name, action):
    try:
        action()
        changed.append(name)
    except OSError:
        pass
tried("open", lambda: open(OUT + "/new", "w"))
tried("append", lambda: open(FILE, "a"))
tried("truncating open", lambda: os.open(FILE, os.O_RDONLY | os.O_TRUNC))
tried("unnamed file", lambda: os.open(OUT, os.O_TMPFILE | os.O_RDWR))
tried("truncate", lambda: os.truncate(FILE, 0))
tried("remove", lambda: os.remove(FILE))
tried("rename", lambda: os.rename(FILE, OUT + "/other"))
tried("replace", lambda: (open("mine", "w").close(), os.replace("mine", FILE)))
tried("link out", lambda: os.link(FILE, OUT + "/hard"))
tried("link in", lambda: os.link(FILE, "hard"))
tried("symlink", lambda: os.symlink(FILE, OUT + "/soft"))
tried("through a symlink", lambda: (os.symlink(FILE, "soft"), open("soft", "w")))
tried("mkdir", lambda: os.mkdir(OUT + "/folder"))
tried("mkfifo", lambda: os.mkfifo(OUT + "/fifo"))
tried("rmdir", lambda: os.rmdir(OUT))
tried("chmod", lambda: os.chmod(FILE, 0o777))
tried("chown", lambda: os.chown(FILE, 65534, 65534))
tried("utime", lambda: os.utime(FILE))
tried("setxattr", lambda: os.setxattr(FILE, "user.a", b"1"))
tried("/dev/shm", lambda: open("/dev/shm/tandem-sandbox-test", "w"))
tried("/proc", lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
tried("memory file", lambda: os.memfd_create("a"))
print(changed)
)", guard);
    EXPECT_EQ(r.output, "[]\n") << r.why << r.errors;
    std::ifstream in(outside.path());
    std::string line;
    std::getline(in, line);
    EXPECT_EQ(line, "VALUE = 1");
    EXPECT_EQ(std::distance(fs::directory_iterator(outside.folder()), fs::directory_iterator()), 1);
  }
}

TEST(Sandbox, UnderLandlockTheProgramHasAFolderOfItsOwnAndReadsNoOthers) {
  if (guards().front() != FileGuard::kLandlock) GTEST_SKIP() << "this kernel has no Landlock";
  const PythonFile outside("SECRET = 1\n");
  const ProgramRun r = run("import os, tempfile\nopen('a.txt', 'w').write('kept')\nos.mkdir('b'); os.rename('a.txt', 'b/c')\n"
                           "print(open('b/c').read(), tempfile.gettempdir() == os.getcwd())\nos.remove('b/c'); os.rmdir('b')\n"
                           "parent = f'/proc/{os.getppid()}/'\n"
                           "for path in ['" + outside.path() + "', '/etc/passwd', parent + 'mem', parent + 'environ']:\n"
                           "    try:\n        open(path, 'rb').read(1); print('read', path)\n    except OSError:\n        pass\n"
                           "open('left', 'w').write('x')\nprint(os.getcwd())");
  EXPECT_TRUE(r.finished) << r.why << r.errors;
  EXPECT_TRUE(r.output.starts_with("kept True\n/")) << r.output;
  const std::string folder = r.output.substr(r.output.find('/'), r.output.size() - r.output.find('/') - 1);
  EXPECT_FALSE(fs::exists(folder)) << "the folder goes with the program";
}

ProgramRun run_in(const std::string& source, FileQuota quota) {
  const Sandbox sandbox("python3", {5, 256 * kMib, kMib, 4 * kMib}, FileGuard::kLandlock, quota);
  return sandbox.run({source, "", "", ""});
}

// Those this machine has: in a container without CAP_SYS_ADMIN files can only be counted.
const std::vector<FileQuota>& quotas() {
  static const std::vector<FileQuota> all = Sandbox("python3", {}).has_quota()
                                                ? std::vector<FileQuota>{FileQuota::kMounted, FileQuota::kCounted}
                                                : std::vector<FileQuota>{FileQuota::kCounted};
  return all;
}

TEST(Sandbox, FilesAreLimited) {
  if (guards().front() != FileGuard::kLandlock) GTEST_SKIP() << "without Landlock no file is written at all";
  const ProgramRun one = run("f = open('big', 'wb')\nwhile True:\n    f.write(bytes(2**20))\n");
  EXPECT_FALSE(one.finished);
  EXPECT_NE(one.why, "time limit");
  for (FileQuota quota : quotas()) {
    const std::string why = quota == FileQuota::kMounted ? "exit code 1" : "file limit";  // it is told, or ended
    EXPECT_EQ(run_in("i = 0\nwhile True:\n    open(str(i), 'wb').write(bytes(2**20)); i += 1\n", quota).why, why);
    EXPECT_EQ(run_in("i = 0\nwhile True:\n    open(str(i), 'wb').close(); i += 1\n", quota).why, why);
  }
}

// Each writes 1 MiB after the other as long as it is let, in some place where nobody looks, and says how many.
constexpr const char* kHidden[] = {
    "    f = open('x', 'wb', 0); os.remove('x')\n    kept.append(f); f.write(bytes(2**20))\n",
    "    f = open('x', 'wb', 0); f.write(bytes(2**20)); os.rename('x', 'y'); kept.append(f)\n",
    "    os.mkdir('d' * 250); os.chdir('d' * 250); open('x', 'wb', 0).write(bytes(2**20))\n",
    "    f = open('x', 'w+b', 0); f.write(bytes(2**20)); kept.append(mmap.mmap(f.fileno(), 2**20)); os.remove('x')\n",
    "    f = open('x' * 10 + str(len(kept)), 'wb', 0); kept.append(f.fileno()); os.posix_fallocate(f.fileno(), 0, 2**20)\n",
    "    f = open(str(len(kept)), 'wb', 0); kept.append(f)\n    if libc.fallocate(f.fileno(), 1, 0, ctypes.c_long(2**20)): raise OSError\n",
    "    os.mkdir('.' + str(n)); open('.' + str(n) + '/x', 'wb', 0).write(bytes(2**20)); os.chdir('.' + str(n))\n"};

TEST(Sandbox, FilesThatNobodySeesAreLimitedToo) {
  if (guards().front() != FileGuard::kLandlock) GTEST_SKIP() << "without Landlock no file is written at all";
  for (FileQuota quota : quotas())
    for (const std::string body : kHidden) {
      const ProgramRun r = run_in("import ctypes, mmap, os, time\nlibc = ctypes.CDLL(None)\nkept, n = [], 0\ntry:\n  while n < 24:\n"
                                  "    time.sleep(0.03)\n" + body + "    n += 1\nexcept OSError:\n  pass\nprint(n, flush=True)\n", quota);
      if (r.why == "file limit") continue;  // the parent saw it and ended the program
      EXPECT_TRUE(r.finished) << r.why << r.errors;
      EXPECT_LE(std::atoi(r.output.c_str()), 4) << "MiB of 4 were written by\n" << body;
    }
}

TEST(Sandbox, DeepFoldersGoWithTheProgram) {
  if (guards().front() != FileGuard::kLandlock) GTEST_SKIP() << "without Landlock no folder is made at all";
  const test::TemporaryFolder scratch("sandbox");
  const char* before = getenv("TMPDIR");
  const std::string kept = before ? before : "";
  setenv("TMPDIR", scratch.path().c_str(), 1);
  rlimit before_limit{};
  getrlimit(RLIMIT_NOFILE, &before_limit);
  rlimit few{200, before_limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  for (FileQuota quota : quotas()) {
    run_in("import os\nfor i in range(3000):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n", quota);
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  }
  setrlimit(RLIMIT_NOFILE, &before_limit);
  before ? setenv("TMPDIR", kept.c_str(), 1) : unsetenv("TMPDIR");
}

// A chain of folders, much deeper than a path can be, with a file and a link on each floor.
void dig(const std::string& top, int depth) {
  Descriptor at(open(top.c_str(), O_RDONLY | O_DIRECTORY));
  for (int i = 0; i < depth; ++i) {
    for (const char* name : {"deep", "also"}) ASSERT_EQ(mkdirat(at.number(), name, 0700), 0);
    ASSERT_EQ(symlinkat("/", at.number(), "root"), 0);
    close(openat(at.number(), "file", O_CREAT | O_WRONLY, 0600));
    at = Descriptor(openat(at.number(), "deep", O_RDONLY | O_DIRECTORY));
  }
}

TEST(PrivateFolder, ATreeOfAnyDepthIsRemovedWithFewDescriptors) {
  const test::TemporaryFolder scratch("sandbox");
  const std::string top = scratch / "top";
  fs::create_directory(top);
  dig(top, 2000);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int lowest_free = open("/dev/null", O_RDONLY);
  close(lowest_free);
  rlimit few{static_cast<rlim_t>(lowest_free + 3), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const bool removed = remove_tree(top);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(removed);
  EXPECT_FALSE(fs::exists(top));
  EXPECT_TRUE(fs::exists("/")) << "links are not followed";
}

TEST(Sandbox, ThereIsNoNetwork) {
  for (FileGuard guard : guards()) {
    const ProgramRun r = run(R"(
import socket, urllib.request
made = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
            made.append((family, kind))
        except OSError:
            pass
try:
    urllib.request.urlopen("http://127.0.0.1:1/", timeout=1)
except OSError as error:
    print(type(error.reason).__name__)
print(made)
)", guard);
    EXPECT_EQ(r.output, "PermissionError\n[]\n") << r.why << r.errors;
  }
}

TEST(Sandbox, NoOtherProcessIsReached) {
  for (FileGuard guard : guards()) {
    const ProgramRun r = run(R"(
import ctypes, fcntl, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
print(sum(1 for pid in (os.getppid(), 1, -1, 0) for sig in (0, signal.SIGKILL) if libc.kill(pid, sig) == 0))
print([call for call in (101, 310, 311, 425, 438, 321, 434, 424) if libc.syscall(call, os.getppid(), 0, 0, 0, 0, 0) >= 0])
r, w = os.pipe()
try:
    fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid()); print("owner")
except OSError:
    pass
try:
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)); print("limit")
except OSError:
    pass
os.kill(os.getpid(), 0)
print(libc.prctl(1, 0) != 0, os.getpid() != os.getppid())
)", guard);
    EXPECT_EQ(r.output, "0\n[]\nTrue True\n") << r.why << r.errors;
  }
}

TEST(Sandbox, OutputWithoutEndIsStopped) {
  for (const std::string stream : {"stdout", "stderr"}) {
    ProgramRun r;
    EXPECT_LT(seconds([&] { r = run("import sys\nwhile True:\n    sys." + stream + ".write('x' * 65536)\n"); }), 4);
    EXPECT_EQ(r.why, "output limit");
    EXPECT_LE(r.output.size(), static_cast<size_t>(kMib));
  }
}

TEST(Sandbox, AMissingPythonIsSaid) {
  try {
    Sandbox("no-such-python", {});
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("no-such-python"), std::string::npos);
  }
}

double grade_code(const std::string& response, const std::string& gold, const std::string& spec = "code(code_timeout_s=2)") {
  static std::map<std::string, std::unique_ptr<Rule>> rules;
  auto& rule = rules[spec];
  if (!rule) rule = make_rule(spec);
  return rule->score({response, gold}).score;
}

std::string fenced(const std::string& source) { return "I think\n```python\n" + source + "\n```\nso it is."; }

TEST(CodeRule, ProgramsAreJudgedByWhatTheyPrint) {
  const std::string gold = R"({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]})";
  EXPECT_EQ(grade_code(fenced("print(sum(map(int, input().split())))"), gold), 1);
  EXPECT_EQ(grade_code(fenced("print(3)"), gold), 0);
  EXPECT_EQ(grade_code(fenced("print(3)"), gold, "code(code_score=share)"), 0.5);
  EXPECT_EQ(grade_code("print(sum(map(int, input().split())))", gold), 0) << "no fenced block";
  EXPECT_EQ(grade_code(fenced("def broken(:"), gold), 0);
  EXPECT_EQ(grade_code(fenced("if __name__ == '__main__':\n    print(sum(map(int, input().split())))"), gold), 1);
  EXPECT_EQ(grade_code(fenced("print(1/3)"), R"([{"input": "", "output": "0.3333333", "testtype": "stdin"}])"), 1);
  EXPECT_EQ(grade_code(fenced("print(1)"), R"([{"input": "", "output": "1", "testtype": 3}])"), 1) << "no word: a program";
}

TEST(CodeRule, FunctionsAreJudgedByWhatTheyReturn) {
  const std::string apps = R"({"inputs": [[[1, 2], 3], [[], 0]], "outputs": [[[1, 2, 3]], [[0]]], "fn_name": "add"})";
  EXPECT_EQ(grade_code(fenced("class Solution:\n    def add(self, a, b):\n        return a + [b]"), apps), 1);
  EXPECT_EQ(grade_code(fenced("def add(a, b):\n    return tuple(a + [b])"), apps), 1);
  EXPECT_EQ(grade_code(fenced("def add(a, b):\n    return a"), apps), 0);
  EXPECT_EQ(grade_code(fenced("def other(a, b):\n    return a"), apps), 0);
  const std::string live = R"([{"input": "[1, 2]\n3", "output": "6.0", "testtype": "functional",
                               "metadata": "{\"func_name\": \"total\"}"}])";
  EXPECT_EQ(grade_code(fenced("def total(a, b):\n    print('noise')\n    return sum(a) + b"), live), 1);
}

TEST(CodeRule, AssertionsMustAllHold) {
  const std::string gold = R"(["assert double(2) == 4", "assert double(-1) == -2"])";
  EXPECT_EQ(grade_code(fenced("def double(x):\n    return 2 * x"), gold), 1);
  EXPECT_EQ(grade_code(fenced("def double(x):\n    return x * x"), gold), 0);
  EXPECT_EQ(grade_code(fenced("def double(x):\n    return x * x"), gold, "code(code_score=share)"), 0.5);
  const std::string plain = "def check(f):\n    assert f(2) == 4\ncheck(double)\n";
  EXPECT_EQ(grade_code(fenced("def double(x):\n    return 2 * x"), plain), 1);
  EXPECT_EQ(grade_code(fenced("import os\nos._exit(0)"), plain), 0) << "leaving early passes nothing";
  EXPECT_EQ(grade_code(fenced("raise SystemExit(0)"), plain), 0);
  EXPECT_EQ(grade_code(fenced("import os\ndef double(x):\n    os._exit(0)"), plain), 0);
  EXPECT_EQ(grade_code(fenced("import os\nos.write(4, b'\\n{\"token\": \"x\"}\\n')\nos._exit(0)"), plain), 0);
  EXPECT_EQ(grade_code(fenced("import os\nos.write(4, b'\\n')\nos.read(4, 65536)\n"
                         "left = b'{\"token\":' + b'[' * 100000 + b']' * 100000 + b'}\\n'\n"
                         "while left: left = left[os.write(4, left):]\nos._exit(0)"), plain), 0)
      << "a reply that nests deeper than a stack holds";
}

TEST(CodeRule, HostileProgramsScoreZeroAndTheRuleGoesOn) {
  const std::string gold = R"({"inputs": [""], "outputs": ["ok"]})";
  for (const std::string body :
       {"while True: pass", "import os\nwhile True: os.fork()", "x = bytearray(10 * 2**30)\nprint('ok')",
        "open('/tmp/x', 'w')\nprint('ok')", "import socket\nsocket.create_connection(('1.1.1.1', 53))\nprint('ok')",
        "while True: print('x' * 10000)"}) {
    EXPECT_EQ(grade_code(fenced(body), gold), 0) << body;
    EXPECT_EQ(grade_code(fenced("print('ok')"), gold), 1) << "after " << body;
  }
}

TEST(CodeRule, AGoldWithoutTestsIsAnError) {
  for (const std::string gold : {"", "{}", "[]", "[3]", R"({"inputs": ["a"], "outputs": []})", "7", "null"})
    EXPECT_THROW(grade_code(fenced("pass"), gold), UserError) << gold;
}

TEST(CodeTests, TheLastBlockCounts) {
  EXPECT_EQ(code_block("```python\na\n```\n```python\nb\n```\n```\nout\n```"), "b\n");
  EXPECT_EQ(code_block("```\na\n```"), "a\n");
  EXPECT_FALSE(code_block("a"));
  EXPECT_FALSE(code_block("```python\na"));
}

TEST(CodeTests, OutputIsComparedLineByLine) {
  EXPECT_TRUE(same_output("1 \n2\n\n", "1\n2"));
  EXPECT_FALSE(same_output("1\n\n2", "1\n2"));
  EXPECT_TRUE(same_output("0.30000000001 a", "0.3 a"));
  EXPECT_FALSE(same_output("3", "4"));
  EXPECT_FALSE(same_output("30000001", "30000000")) << "whole numbers are exact";
}

TEST(CodeTests, NothingButADecimalNumeralIsComparedAsANumber) {
  for (const std::string infinite : {"inf", "-inf", "Infinity", "1e999", "-1.0e999"}) {
    EXPECT_FALSE(same_output("1", infinite)) << infinite;
    EXPECT_FALSE(same_output("-7.5", infinite)) << infinite;
    EXPECT_FALSE(same_output(infinite, "7.5")) << infinite;
    EXPECT_TRUE(same_output(infinite, infinite)) << "the same word is the same output";
  }
  EXPECT_FALSE(same_output("-inf", "inf"));
  for (const std::string other : {"0x10", "0x1p4", "1_6.0", "16.0f", "nan", "nan(16)", "+-16.0", "16.0.0", "1e", "", "\uFF11\uFF16.0",
      "0b10000"})
    EXPECT_FALSE(same_output(other, "16.0")) << other;
  for (const std::string same : {"16.0", "16.", "+16.0", "1.6e1", "16", "016.0", "160.0e-1"}) EXPECT_TRUE(same_output(same, "16.0"))
      << same;
  EXPECT_TRUE(same_output("-.5", "-0.50"));
}

TEST(CodeTests, AnInfiniteExpectationOfACallIsMetByNoNumber) {
  EXPECT_FALSE(same_result(nlohmann::json(3), nlohmann::json(INFINITY)));
  EXPECT_FALSE(same_result(nlohmann::json(3.5), nlohmann::json(-INFINITY)));
  EXPECT_FALSE(same_result(nlohmann::json(NAN), nlohmann::json(3.5)));
  EXPECT_FALSE(same_result(nlohmann::json::array({1.5}), nlohmann::json::array({INFINITY})));
  EXPECT_FALSE(same_result(nlohmann::json("0x10"), nlohmann::json(16.0)));
  EXPECT_TRUE(same_result(nlohmann::json(0.1 + 0.2), nlohmann::json(0.3)));
}

// 100000000003 squared has 23 digits: no float holds it.
TEST(CodeRule, AnIntegerOfAnyLengthIsExact) {
  const auto program = [](const std::string& result) { return fenced("def f(n):\n    return " + result); };
  const std::string digits(60, '7');
  const std::pair<std::string, std::string> golds[] = {
      {R"({"inputs": [[100000000003]], "outputs": [10000000000600000000009], "fn_name": "f"})", "n * n"},
      {R"({"inputs": [[-100000000003]], "outputs": [[10000000000600000000009]], "fn_name": "f"})", "n * n"},
      {R"({"inputs": ["100000000003"], "outputs": ["10000000000600000000009"], "fn_name": "f"})", "n * n"},
      {R"([{"input": "100000000003", "output": "10000000000600000000009", "testtype": "functional", "metadata": {"func_name": "f"}}])",
       "n * n"},
      {R"({"inputs": [[18446744073709551617]], "outputs": [18446744073709551617], "fn_name": "f"})", "n"},
      {R"({"inputs": [[)" + digits + R"(]], "outputs": [-)" + digits + R"(], "fn_name": "f"})", "-n"},
      {R"({"inputs": [[)" + digits + R"(]], "outputs": [{"a": [)" + digits + R"(]}], "fn_name": "f"})", "n"}};
  for (const auto& [gold, right] : golds) {
    const bool in_object = gold.find("{\"a\"") != std::string::npos;
    const auto given = [&](const std::string& value) { return program(in_object ? "{'a': [" + value + "]}" : value); };
    EXPECT_EQ(grade_code(given(right), gold), 1) << gold;
    for (const std::string wrong : {" + 1", " - 1", " * 10"}) EXPECT_EQ(grade_code(given(right + wrong), gold), 0) << gold << wrong;
  }
  const std::string printed = R"({"inputs": [100000000003], "outputs": [10000000000600000000009]})";
  EXPECT_EQ(grade_code(fenced("print(int(input()) ** 2)"), printed), 1);
  EXPECT_EQ(grade_code(fenced("print(int(input()) ** 2 + 1)"), printed), 0);
  EXPECT_EQ(grade_code(program("{'b': 2.5, 'a': n}"), R"({"inputs": [[1]], "outputs": [{"a": 1, "b": 2.5}], "fn_name": "f"})"), 1)
      << "the order of keys says nothing";
  EXPECT_EQ(grade_code(program("n / 3"), R"({"inputs": [[1]], "outputs": [0.33333333333333333333333], "fn_name": "f"})"), 1);
}

// A kernel's version of Landlock, from none to the first that is enough, and what the log then says.
TEST(CodeGuard, AKernelThatGuardsLessIsWarnedOfOrRefused) {
  const std::string log = (fs::path(::testing::TempDir()) / "code_guard_log.txt").string();
  const std::string answer = "```python\nprint(int(input()) * 2)\n```", gold = R"({"inputs": ["4"], "outputs": ["8"]})";
  for (const int landlock : {0, 1, 2, 3, 6}) {
    if (landlock > landlock_version()) continue;  // rules of a version that this kernel lacks cannot be made
    const bool is_weak = landlock < 3;
    CodeOptions options;
    fs::remove(log);
    log::also_to_file(log);
    EXPECT_EQ(code_rule(options, "", landlock)->score({answer, gold}).score, 1) << landlock;
    log::stop_file();
    std::ifstream in(log);
    const std::string said((std::istreambuf_iterator<char>(in)), {});
    EXPECT_EQ(said.find("may read every file that this user may") != std::string::npos, is_weak) << landlock << said;
    EXPECT_EQ(said.find("reward.code_guard: require") != std::string::npos, is_weak) << landlock << said;
    options.code_guard = "require";
    if (!is_weak) {
      EXPECT_EQ(code_rule(options, "", landlock)->score({answer, gold}).score, 1) << landlock;
      continue;
    }
    const std::string error = test::error_of<UserError>([&] { code_rule(options, "", landlock); });
    EXPECT_EQ(error.find("reward.code_guard: this kernel has "), 0) << error;
    EXPECT_NE(error.find("Linux 6.2 or newer"), std::string::npos) << error;
  }
  EXPECT_THROW(make_rule("code(code_guard=always)"), UserError);
  EXPECT_NE(code_guard_text(0).find("no Landlock (3 is needed, of Linux 6.2)"), std::string::npos) << code_guard_text(0);
  EXPECT_NE(code_guard_text(2).find("Landlock 2 (3 is needed, of Linux 6.2)"), std::string::npos) << code_guard_text(2);
  EXPECT_EQ(code_guard_text(7).find("Landlock 7: a program reads the folders of Python"), 0) << code_guard_text(7);
}

}  // namespace
}  // namespace tandem::reward
