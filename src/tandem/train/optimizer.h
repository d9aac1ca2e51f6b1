// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW over one rank's slices of the flat parameters; the slices of the ranks that hold the same make up the whole (ZeRO-1).

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/device/swappable.h"
#include "tandem/model/parameters.h"
#include "tandem/train/gradient_sum.h"
#include "tandem/train/options.h"

namespace tandem::train {

inline constexpr int64_t kSwapChunkElements = 1 << 20;

/// What an optimizer works on and with.
struct OptimizerSetup {
  const model::ParameterTable& table;
  at::Tensor values, grads;               ///< flat; the values in the compute dtype
  Ranks ranks;
  device::Arena& arena;
  device::Arena* host = nullptr;          ///< where the state goes when it leaves
  bool swap = false;                      ///< master weights and moments live in `host`, but for the chunk that an update works on
  const device::Swappable* home = nullptr;  ///< of the values, if they can leave
  monitor::Recorder* recorder = nullptr;  ///< gets a span for each bucket of gradients
  int64_t bucket_bytes = 64 << 20;        ///< of gradients that are summed together
  int64_t chunk_elements = kSwapChunkElements;  ///< of each tensor in the host's memory that are in `arena` at a time
};

/// Part of a parameter whose state this rank has.
struct StatePiece {
  const model::ParameterEntry* entry;
  int64_t begin, end;  ///< elements of the entry's box, row by row
  int64_t at;          ///< where `begin` is in a tensor of the state
};

/// Ownership  uses the flat values and gradients; owns master weights (bf16 models) and both moments of its slices.
/// Threads    one, but for the thread of a GradientSum; collective over the ranks.
/// Errors     UserError if the gradient is not finite, before anything is changed; PeerError of the sums, from step().
/// Read next  bucket.h (who owns what), gradient_sum.h (the overlap with the backward pass)
class Optimizer {
 public:
  using Ranks = train::Ranks;
  /// Collective.
  explicit Optimizer(const OptimizerSetup& setup);

  /// Before the first backward pass of a step.
  void begin_step() { sum_.begin_step(); }
  /// All gradients of this layer are final on this rank; final norm and head are with the last layer that it holds.
  void layer_ready(int64_t layer) { sum_.layer_ready(layer); }
  /// The gradients are not wanted: ends the sums that peers may have begun. Collective.
  void give_up_step() { sum_.finish(); }
  /// Adds up what is left of the ranks' gradients, clips, updates, and gives every rank the new values. Returns the global norm before
  /// clipping.
  double step(const Options& options, double lr);

  /// Sets the master weights from the values; call after loading.
  void adopt_values();
  /// Master weights and moments go to the host and come back; between steps. Returns the bytes copied.
  int64_t leave_device();
  int64_t come_back();
  bool is_away() const { return m_->is_away(); }
  /// The sums of gradients lose their memory, and get some again; between steps.
  void release_sums();
  void back_sums();
  /// GradientSum::sent_bytes
  std::map<std::string, int64_t> gradient_bytes() const { return sum_.sent_bytes(); }
  int64_t num_steps() const { return num_steps_; }

  /// The state of this rank's slices, fp32 and flat, by name: master, m and v; from the host while it is there. A copy where it does
  /// not lie so in memory.
  static const std::vector<std::string>& state_names();
  at::Tensor state(const std::string& name) const;
  int64_t state_size() const { return size_; }
  /// What of it belongs to trained parameters.
  std::vector<StatePiece> state_pieces() const;
  /// `read` fills a tensor of state `name`, fp32 and flat, with a piece. The values of all ranks then follow: share_values().
  using ReadPiece = std::function<void(const std::string& name, const StatePiece& piece, at::Tensor to)>;
  void restore(int64_t num_steps, const ReadPiece& read);
  /// Gives all ranks the values of this one's slices. Collective.
  void share_values();

 private:
  // A range of a slice without what is not trained.
  struct Stretch {
    int64_t begin, size;  // in the flat buffers
    int64_t at;           // in the state
    float* grad;          // summed
  };
  GradientBuckets gradient_buckets();
  void find_stretches();
  double gradient_norm();
  void update(const Stretch& stretch, const model::kernel::AdamArgs& args);
  void update_swapped(const Stretch& stretch, model::kernel::AdamArgs args);
  float* state_data(const std::unique_ptr<device::Swappable>& state) const { return state->tensor().data_ptr<float>(); }
  bool has_half() const { return setup_.values.scalar_type() == at::kBFloat16; }

  OptimizerSetup setup_;
  std::vector<Bucket> buckets_;
  std::vector<Slice> slices_;
  std::unique_ptr<device::Swappable> sums_;  // null where all gradients are their own sum
  std::vector<at::Tensor> summed_;   // by slice
  std::vector<Stretch> stretches_;
  GradientSum sum_;
  int64_t size_ = 0;                 // of the state
  std::unique_ptr<device::Swappable> master_, m_, v_;  // [size_]; no master_ in fp32 models, whose values are it
  at::Tensor chunk_;                 // [3, some]: master and moments on their way, where they live in the host's memory
  int64_t num_steps_ = 0;
};

}  // namespace tandem::train
