// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kinds of devices: a table of functions for each. Nothing above this folder asks which kind it is.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/device/graph.h"
#include "tandem/device/memory.h"

namespace tandem::device {

/// Threads    every function from any thread.
struct Backend {
  const char* name;  ///< as run.device has it
  at::DeviceType type;
  /// How many there are here.
  int (*count)();
  /// Why there is none, and what would be right: {what, expected}. For people; asked where count() is 0.
  std::pair<std::string, std::string> (*missing)();
  /// What the calling thread works with from now on. Before its first tensor there.
  void (*use)(at::Device device);
  /// Waits until what any thread has queued on it is done. Errors: PeerError of what failed there.
  void (*synchronize)(at::Device device);
  /// Its name and its memory, for people.
  std::string (*description)(at::Device device);
  /// Which of the machine's it is, such as its PCI address, however few this process may see. Not asked of the processor.
  std::string (*identity)(at::Device device);
  /// Errors: PeerError, if there are no such addresses.
  std::unique_ptr<Memory> (*reserve)(at::Device device, int64_t num_bytes);
  /// Null where the kind has none: then work is queued operator by operator.
  std::unique_ptr<Graphs> (*make_graphs)(at::Device device);
  /// Whether its memory is the host's: who has waited for it may read its tensors by their addresses.
  bool has_host_memory = false;
  /// Memory of the host that stays where it is until unpin(), so that the device copies it by itself, faster. False: it is copied as any
  /// other. Null where that is all the same.
  bool (*pin)(void* memory, size_t bytes) = nullptr;
  void (*unpin)(void* memory) = nullptr;
  /// Whether auto means it; null where it always does.
  bool (*is_taken_by_auto)() = nullptr;
};

namespace cpu {
const Backend& backend();
}
namespace cuda {
const Backend& backend();
}
namespace npu {
const Backend& backend();
}

/// One more kind, of libtorch's private type, as of tests; process.h:device_names has its name then. Before any device is named, at most
/// once in a process.
void add_backend(const Backend& (*backend)());

/// Of devices of that type.
const Backend& backend_of(at::DeviceType type);
inline const Backend& backend_of(at::Device device) { return backend_of(device.type()); }

/// `name` is cpu, cuda, npu or what was added, or auto: a device if there is one, else the processor. Each rank of a machine has a
/// device of its own. Errors: UserError naming the option, if there are not as many.
at::Device device_named(const std::string& name, const std::string& option, int rank_on_machine = 0, int ranks_on_machine = 1);

/// The identity of the only device that this process sees of the kind that device_named would take; "" where it sees none, or several.
std::string lone_device(const std::string& name);

/// Returns at once where tensors are on the processor.
inline void synchronize(at::Device device) {
  if (!device.is_cpu()) backend_of(device).synchronize(device);
}
/// That, as a function; empty unless the device's memory is the host's.
inline std::function<void()> host_synchronizer(at::Device device) {
  if (device.is_cpu() || !backend_of(device).has_host_memory) return {};
  return [device] { synchronize(device); };
}

/// Pins memory of the host, which must outlive the result, for copies to and from `device`; null where that does nothing.
std::shared_ptr<void> pinned(at::Device device, void* memory, size_t bytes);

}  // namespace tandem::device
