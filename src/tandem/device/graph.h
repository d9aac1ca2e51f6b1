// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device does again and again, kept as one: launched once instead of operator by operator.

#include <functional>
#include <memory>

namespace tandem::device {

/// Ownership  owns what the work allocated on the device while it was captured.
/// Threads    that of its device.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Runs `work` once as it is, and once more to keep what it does on the device; what that made is not computed before replay(). The work
  /// must not wait for the device, nor read the host. Errors: those of the work, and of libtorch for what the device refuses.
  virtual void capture(const std::function<void()>& work) = 0;
  /// Queues it, on the tensors that it was captured with.
  virtual void replay() = 0;
};

/// Graphs that share memory: what one has computed is gone when another one of them runs. The memory goes with the last of them.
/// Threads    that of its device.
/// Read next  device.h:Backend::make_graphs
class Graphs {
 public:
  virtual ~Graphs() = default;
  virtual std::unique_ptr<Graph> make() = 0;
};

}  // namespace tandem::device
