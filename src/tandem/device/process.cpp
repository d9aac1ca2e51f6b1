// SPDX-License-Identifier: Apache-2.0
#include "tandem/device/process.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

// Settings of one thread; libtorch has them, but for one build or another. at::set_num_threads is for the whole process.
extern "C" {
void omp_set_num_threads(int threads) __attribute__((weak));
int omp_get_max_threads() __attribute__((weak));
int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));
}

namespace tandem::device {

void tune_allocator() {
  ::mallopt(M_ARENA_MAX, 1);  // rank threads, too: the heaps of other arenas are too small for activations and would map each anew
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  ::mallopt(M_TOP_PAD, 256 << 20);
}

void set_compute_threads(int threads) {
  at::set_num_threads(threads);
  (void)at::get_num_threads();  // the value is adopted at a thread's first use
}

ThreadLimit::ThreadLimit(int threads) {
  const int own = at::get_num_threads();  // the value of the process is adopted at a thread's first use
  if (threads == 0 || threads >= own || !omp_set_num_threads || !omp_get_max_threads) return;
  outer_ = omp_get_max_threads();
  omp_set_num_threads(threads);
  if (MKL_Set_Num_Threads_Local) outer_blas_ = MKL_Set_Num_Threads_Local(threads);
}

ThreadLimit::~ThreadLimit() {
  if (outer_ == 0) return;
  omp_set_num_threads(outer_);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(outer_blas_);
}

int num_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void name_thread(std::string_view what) { ::prctl(PR_SET_NAME, ("tandem:" + std::string(what)).c_str()); }

// Of one thread, as Linux has it. Where it is refused the thread goes on as it is.
void step_back() {
  const auto thread = static_cast<id_t>(::gettid());
  (void)::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, thread) + 10);
}

namespace {
std::string& name_of_program() {
  static std::string name;
  return name;
}
}  // namespace

void name_program(const std::string& name) { name_of_program() = name; }

std::string program_path() {
  if (!name_of_program().empty()) return name_of_program();
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (program.filename().string().starts_with("python")) return "python -m tandem";
  const std::filesystem::path near = failed ? program : std::filesystem::relative(program, failed);
  return failed || near.empty() ? "tandem" : near.string();
}

std::string cores_name() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::string name = host;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return name;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) name += " " + std::to_string(core);
  return name;
}

}  // namespace tandem::device
