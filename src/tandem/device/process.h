// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is set once for the whole process before any tensor exists: allocator behaviour and compute threads; what the system says of it.

#include <string>
#include <string_view>
#include <vector>

namespace tandem::device {

/// Keeps freed activations in the heap: page faults would cost a third of a training step. Call first in main.
void tune_allocator();

/// Compute threads of the calling thread and of those started later. Call on each rank thread before its first tensor.
void set_compute_threads(int threads);

/// While it lives, the calling thread computes with that many threads at most; others keep theirs. 0: no limit.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int outer_ = 0, outer_blas_ = 0;
};

/// What kinds of devices are called in options, auto first. A program that adds a kind (device.h:add_backend) adds its name.
inline std::vector<std::string>& device_names() {
  static std::vector<std::string> names = {"auto", "cpu", "cuda", "npu"};
  return names;
}

/// Cores this process may use.
int num_cores();

/// What `ps` and `top` call the calling thread from now on: `tandem:WHAT`, of which the system keeps 15 characters.
void name_thread(std::string_view what);

/// The calling thread has the processor where no other wants it, but for about a tenth. For good.
void step_back();

/// Where this program lies, seen from the working directory, or how to start it within Python; for commands shown to a person.
std::string program_path();
/// What program_path says from now on.
void name_program(const std::string& name);

/// The machine and those cores, as a text that is equal where they are.
std::string cores_name();

}  // namespace tandem::device
