// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW over one rank's slice of the flat parameters; the slices of the data-parallel ranks make up the whole (ZeRO-1).

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/mesh.h"
#include "tandem/device/arena.h"
#include "tandem/model/parameters.h"
#include "tandem/train/options.h"

namespace tandem::train {

/// Ownership  uses the flat values and gradients; owns master weights (bf16 models) and both moments of its slice.
/// Threads    one; collective over the ranks.
/// Errors     UserError if the gradient is not finite, before anything is changed.
class Optimizer {
 public:
  struct Ranks {
    comm::Group* world;        ///< all ranks of the layout
    comm::Group* data;         ///< ranks that hold the same dense parameters
    comm::Group* expert_data;  ///< ranks that hold the same experts
    comm::Group* tp;
    comm::Group* tied;         ///< the first and the last pipeline stage, where both hold the embedding; else null
  };
  static Ranks ranks_in(comm::Mesh& mesh, const model::ModelConfig& config);
  static Ranks ranks_of_one(comm::Group& alone) { return {&alone, &alone, &alone, &alone, nullptr}; }
  Optimizer(const model::ParameterTable& table, at::Tensor values, at::Tensor grads, Ranks ranks, device::Arena& arena);

  /// Adds the ranks' gradients, clips, updates, and gives every rank the new values. Returns the global norm before clipping.
  double step(const Options& options, double lr);

  /// Sets the master weights from the values; call after loading.
  void adopt_values();
  /// The state of this slice by name: master, m, v (fp32, [slice]) and the step count.
  std::map<std::string, at::Tensor> state() const;
  /// Errors: UserError if the sizes are those of another layout.
  void restore(const std::map<std::string, at::Tensor>& state, const std::string& where);
  int64_t num_steps() const { return num_steps_; }

 private:
  void reduce_gradients();
  void add_head_replicas();
  double gradient_norm();

  const model::ParameterTable& table_;
  at::Tensor values_, grads_;
  Ranks ranks_;
  int64_t begin_, size_;             // of the slice
  std::vector<std::pair<int64_t, int64_t>> trained_;  // ranges of the slice
  at::Tensor master_, m_, v_;        // [size_]; master_ is a view of values_ in fp32 models
  at::Tensor reduced_;               // [size_] summed gradients
  int64_t num_steps_ = 0;
};

}  // namespace tandem::train
