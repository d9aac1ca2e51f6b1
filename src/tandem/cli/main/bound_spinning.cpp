// SPDX-License-Identifier: Apache-2.0
// Part of each program that computes.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace {

bool computes(std::string_view command) {
  constexpr std::string_view kCompute[] = {"run", "sft", "rollout", "eval", "generate", "talk", "bench"};
  return std::find(std::begin(kCompute), std::end(kCompute), command) != std::end(kCompute);
}

// libgomp lets a thread that waits spin for several milliseconds before it sleeps. On a machine with other work it then keeps the core
// that the thread it waits for needs. A step takes many times as long. Half a millisecond covers what lies between two parallel regions.
// libgomp reads its environment when it is loaded, so a command that computes starts once more. It does so before any library has set
// itself up, which takes libtorch 0.3 s. No library may be used here yet: the environment comes as an argument and is copied by hand.
[[gnu::no_sanitize("address", "thread", "undefined")]] void bound_spinning(int argc, char** argv, char** environment) {
  static char spin_count[] = "GOMP_SPINCOUNT=10000";
  static std::array<char*, 4096> with_spin_count{};
  if (argc < 2 || !computes(argv[1])) return;
  size_t count = 0;
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("OMP_WAIT_POLICY=") || text.starts_with("GOMP_SPINCOUNT=") || count + 2 == with_spin_count.size()) return;
    with_spin_count[count++] = *entry;
  }
  with_spin_count[count] = spin_count;
  ::execve("/proc/self/exe", argv, with_spin_count.data());  // goes on as it is if it cannot
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)(int, char**, char**) = bound_spinning;

}  // namespace
