// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradients of all ranks added up, bucket by bucket, while the backward pass goes on.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tandem/comm/mesh.h"
#include "tandem/device/swappable.h"
#include "tandem/monitor/recorder.h"
#include "tandem/train/bucket.h"

namespace tandem::train {

/// Whom a rank of a layout trains with. A group of one rank where nobody shares.
struct Ranks {
  comm::Group* world;               ///< all ranks of the layout
  comm::Group* data;                ///< those with the same dense parameters and other tokens
  comm::Group* expert_data;         ///< those with the same experts
  comm::Group* tp;
  comm::Group* tied = nullptr;      ///< the first and the last stage, if both hold the embedding

  /// The mesh must outlive it.
  static Ranks in(comm::Mesh& mesh, const model::ModelConfig& config);
  static Ranks of_one(comm::Group& alone) { return {&alone, &alone, &alone, &alone}; }
};

/// What a GradientSum works on. The tensors of `sums` get this rank's part of each bucket; where its group has one rank, they are the
/// bucket's own place in `grads`.
struct GradientBuckets {
  struct Sums {
    at::Tensor dense, experts;
  };
  const model::ParameterTable& table;
  at::Tensor grads;             ///< flat, fp32
  std::vector<Bucket> buckets;
  std::vector<Sums> sums;       ///< by bucket
};

/// Ownership  uses groups and tensors; owns a thread, and groups of its own for it, where there is anybody to add up with.
/// Threads    one calls; all ranks of a pipeline stage have the same buckets and announce layers in the same order, or not at all.
/// Blocking   finish() waits for the sums, or has the device wait for those that it is at. The destructor waits for at most a moment, or
///            ends its groups; for what a device is at, at most the deadline.
/// Errors     PeerError of the sums, from finish().
/// Numerics   the sum over TP ranks, then over the two stages of a tied embedding, then over data ranks; each in rank order, but
///            where a library of devices adds up (comm/group.h).
class GradientSum {
 public:
  /// Collective over all groups. `staging` is where it has memory of its own. `recorder` may be null; it gets a span for each bucket.
  GradientSum(GradientBuckets work, const Ranks& ranks, const device::Home& staging, monitor::Recorder* recorder);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  /// Before the first backward pass of a step.
  void begin_step();
  /// The gradients of this layer are final on this rank.
  void layer_ready(int64_t layer);
  /// All are; what is queued from here on comes behind their sums.
  void finish();

  /// What it has of its own; null if nothing. Between steps that may leave, and must be back before the next.
  device::Swappable* memory() const { return staging_.get(); }

 private:
  struct Groups {
    std::unique_ptr<comm::Group> data, expert_data, tp, tied;  // null: nobody to add up with
  };
  // An entry whose gradient is a part of a sum over TP ranks, and its place among those of its layer.
  struct Partial {
    const model::ParameterEntry* entry;
    int64_t at, size;
    bool by_heads;  // TP ranks hold different boxes: each adds its part to a place for the whole
  };
  void find_partials(const device::Home& staging);
  void run();
  void sum(size_t bucket);
  void sum_over_tp(const std::vector<Partial>& partials);
  void sum_tied(const Bucket& bucket);

  GradientBuckets work_;
  monitor::Recorder* recorder_;
  Groups groups_;
  std::vector<std::vector<Partial>> partials_;  // as table.layers
  std::vector<std::unique_ptr<comm::Work>> begun_;  // sums that a device is at; of the thread until all buckets are begun, then of finish()
  std::unique_ptr<device::Swappable> staging_;  // of the partials of one layer; null if there are none

  std::mutex mutex_;  // guards all below but the thread
  std::condition_variable changed_;
  std::vector<int64_t> pending_;  // by bucket: layers not announced yet
  size_t next_;                   // bucket to be summed
  bool working_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;            // none where there is nobody to add up with
};

}  // namespace tandem::train
