// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW over one rank's slices of the flat parameters; the slices of the ranks that hold the same make up the whole (ZeRO-1).

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/train/gradient_sum.h"
#include "tandem/train/optimizer_state.h"
#include "tandem/train/options.h"

namespace tandem::train {

/// What an optimizer works on and with.
struct OptimizerSetup {
  StateSetup state;
  at::Tensor grads;                       ///< fp32, flat as the values
  Ranks ranks;
  monitor::Recorder* recorder = nullptr;  ///< gets a span for each bucket of gradients
  int64_t bucket_bytes = 64 << 20;        ///< of gradients that are summed together
};

/// Ownership  uses the flat values and gradients; owns the state of its slices and the sums of their gradients.
/// Threads    one, but for the thread of a GradientSum; collective over the ranks.
/// Errors     PeerError of the sums, from step().
/// Read next  bucket.h (who owns what), gradient_sum.h (the overlap with the backward pass), optimizer_state.h (what an update changes)
class Optimizer {
 public:
  /// Collective.
  explicit Optimizer(const OptimizerSetup& setup);

  /// Before the first backward pass of a step.
  void begin_step() { sum_.begin_step(); }
  /// All gradients of this layer are final on this rank; final norm and head are with the last layer that it holds.
  void layer_ready(int64_t layer) { sum_.layer_ready(layer); }
  /// The gradients are not wanted: ends the sums that peers may have begun. Collective.
  void give_up_step() { sum_.finish(); }
  /// Adds up what is left of the ranks' gradients, clips, updates, and gives every rank the new values. Returns the global norm before
  /// clipping; if it is not finite nothing is updated.
  double step(const Options& options, double lr);
  int64_t num_steps() const { return num_steps_; }

  OptimizerState& state() { return state_; }
  const OptimizerState& state() const { return state_; }
  /// As after `num_steps` steps. The values of all ranks then follow: share_values().
  void restore(int64_t num_steps, const ReadPiece& read);
  /// Gives all ranks the values of this one's slices. Collective.
  void share_values();

  /// The memory of the sums of gradients; null where there is none. Between steps it may leave, and must be back before the next.
  std::array<device::Swappable*, 2> sums() const { return {sums_.get(), sum_.memory()}; }

 private:
  GradientBuckets gradient_buckets();
  void find_stretches();
  double gradient_norm();

  OptimizerSetup setup_;
  std::vector<Bucket> buckets_;
  std::vector<Slice> slices_;
  std::unique_ptr<device::Swappable> sums_;  // null where all gradients are their own sum
  std::vector<at::Tensor> summed_;   // by slice
  std::vector<Stretch> stretches_;
  GradientSum sum_;
  OptimizerState state_;
  int64_t num_steps_ = 0;
};

}  // namespace tandem::train
