// SPDX-License-Identifier: Apache-2.0
#pragma once
// What AdamW keeps of a rank's slices from step to step: master weights and both moments. On the device, away from it, or by name.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/device/copy_stream.h"
#include "tandem/device/swappable.h"
#include "tandem/model/kernel/backend.h"
#include "tandem/model/parameters.h"
#include "tandem/train/bucket.h"

namespace tandem::train {

inline constexpr int64_t kSwapChunkElements = 1 << 20;

/// What the state belongs to, and where it may be.
struct StateSetup {
  const model::ParameterTable& table;
  const model::kernel::UpdateKernels& kernels;
  at::Tensor values;                        ///< flat, in the compute dtype
  device::Arena& arena;
  device::Arena* host = nullptr;            ///< where the state goes when it leaves
  bool swap = false;                        ///< the state lives in `host`, but for the chunk that an update works on
  const device::Swappable* home = nullptr;  ///< of the values, if they can leave
  int64_t chunk_elements = kSwapChunkElements;  ///< of each tensor in the host's memory that are in `arena` at a time
  std::string owner_prefix = "";            ///< before the names of what is held in the arenas
};

/// A range of a slice: trained, and of one kind.
struct Stretch {
  int64_t begin, size;  ///< in the flat buffers
  int64_t at;           ///< in the state
  at::Tensor grad;      ///< summed; from `begin` on
  bool matrix;          ///< of parameters with two dimensions; norms and biases have one
};

/// Part of a parameter whose state this rank has.
struct StatePiece {
  const model::ParameterEntry* entry;
  int64_t begin, end;  ///< elements of the entry's box, row by row
  int64_t at;          ///< where `begin` is in a tensor of the state
};

/// Fills a tensor of the state `name`, fp32 and flat, with a piece.
using ReadPiece = std::function<void(const std::string& name, const StatePiece& piece, at::Tensor to)>;

/// Ownership  owns both moments and, in bf16 models, master weights; in fp32 models the values are these. Uses values and arenas.
/// Threads    one at a time.
/// Errors     UserError where a budget of memory would be exceeded.
/// Read next  optimizer.h (who calls it), docs/design/optimizer.md
class OptimizerState {
 public:
  OptimizerState(const StateSetup& setup, std::span<const Slice> slices);

  /// Sets the master weights from the values; call after loading.
  void adopt_values();
  /// One AdamW step of a stretch: moments, master weights and values.
  void update(const Stretch& stretch, const model::kernel::AdamStep& step);

  /// The state goes to the host and comes back; between steps. Returns the bytes copied.
  int64_t leave_device() { return moved(&device::Swappable::leave); }
  int64_t come_back() { return moved(&device::Swappable::come_back); }
  bool is_away() const { return m_->is_away(); }

  /// Elements of each tensor.
  int64_t size() const { return size_; }
  static const std::vector<std::string>& names();
  /// master, m or v: fp32 and flat, in parts that follow each other; from the host while it is there.
  std::vector<at::Tensor> parts(const std::string& name) const;
  /// The same as one tensor on the CPU: a copy where it does not lie so in memory.
  at::Tensor tensor(const std::string& name) const;
  /// What of it belongs to trained parameters.
  std::vector<StatePiece> pieces() const;
  /// Reads every piece; the values follow.
  void restore(const ReadPiece& read);

 private:
  int64_t moved(int64_t (device::Swappable::*way)());
  void update_by_chunks(const Stretch& stretch, const model::kernel::AdamStep& step);
  bool has_half() const { return setup_.values.scalar_type() == at::kBFloat16; }

  StateSetup setup_;
  std::vector<Slice> slices_;
  int64_t size_ = 0;
  std::unique_ptr<device::Swappable> master_, m_, v_;  // [size_]; no master_ in fp32 models
  // Where the state lives in the host's memory: pieces of master weights and moments on their way, [3, some], in two halves.
  at::Tensor chunk_;
  std::vector<std::shared_ptr<void>> pinned_;
  device::CopyStream coming_, leaving_;
};

}  // namespace tandem::train
