// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/host.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/device/process.h"
#include "tandem/reward/backend/scripts.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// What Python runs: the program, or one line about a Python that cannot.
constexpr const char* kStart = R"PY(
import sys
try:
    import tandem.__main__
except ImportError as error:
    print(f"tandem: error: {sys.executable}: cannot import tandem: {' '.join(str(error).split())} "
          "(reward.python_executable: a Python with the torch of the build)", file=sys.stderr)
    sys.exit(2)
sys.exit(tandem.__main__.main())
)PY";

[[noreturn]] void start_in_python(const config::RunConfig& config, const std::string& option) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();  // in a wheel tandem/bin of the folder with the package
  const fs::path package = reward::wheel_python().empty() ? folder / "python" : folder.parent_path().parent_path();
  std::error_code absent;
  if (!fs::exists(package / "tandem" / "__main__.py", absent))
    throw UserError(option, "names a function in Python, and " + package.string() + " has no module to run it",
                    "scripts/build release tandem_python");
  const std::string& asked = config.reward.python_executable;
  const std::string python = asked.empty() ? std::string(reward::build_python()) : asked;
  std::vector<std::string> words = command_line();
  ::setenv("TANDEM_PROGRAM", words.front().c_str(), 1);
  const char* before = std::getenv("PYTHONPATH");
  ::setenv("PYTHONPATH", (package.string() + (before && *before ? std::string(":") + before : "")).c_str(), 1);
  words.erase(words.begin());
  words.insert(words.begin(), {python, "-P", "-c", kStart});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(python.c_str(), argv.data());
  throw UserError(option, "names a function in Python, and " + python + " cannot be started: " + std::strerror(errno),
                  "reward.python_executable: a Python with the torch of the build");
}

}  // namespace

void ask_for_wheel() {
  const char* const python = std::getenv("TANDEM_WHEEL_PYTHON");
  if (!python) return;
  reward::wheel_python() = python;
  device::name_program("tandem");
}

std::vector<std::string>& command_line() {
  static std::vector<std::string> words;
  return words;
}

LoadHooks& host_hooks() {
  static LoadHooks hooks;
  return hooks;
}

runtime::Hooks hooks_of_recipe(const config::RunConfig& config) {
  const bool loss = algo::names_function(config.algo.loss), advantage = algo::names_function(config.algo.advantage);
  if (!loss && !advantage) return {};
  if (!host_hooks()) start_in_python(config, loss ? "algo.loss" : "algo.advantage");
  return host_hooks()(config);
}

}  // namespace tandem::cli
