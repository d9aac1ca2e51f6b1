// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tandem/cli/app.h"
#include "tandem/device/process.h"

namespace {

// libgomp lets a thread that waits spin for several milliseconds before it sleeps. On a machine with other work it then keeps the core
// that the thread it waits for needs. A step takes many times as long. Half a millisecond covers what lies between two parallel regions.
// libgomp reads its environment when it is loaded, so a command that computes starts once more.
void bound_spinning(int argc, char** argv) {
  constexpr std::string_view kCompute[] = {"run", "sft", "eval", "generate", "talk", "bench"};
  if (argc < 2 || std::find(std::begin(kCompute), std::end(kCompute), argv[1]) == std::end(kCompute)) return;
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  if (::setenv("GOMP_SPINCOUNT", "10000", 0) == 0) ::execv("/proc/self/exe", argv);  // goes on as it is if it cannot
}

}  // namespace

int main(int argc, char** argv) {
  bound_spinning(argc, argv);
  tandem::device::tune_allocator();
  return tandem::cli::main(argc, argv);
}
