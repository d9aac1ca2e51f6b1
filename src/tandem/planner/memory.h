// SPDX-License-Identifier: Apache-2.0
#pragma once
// What training will hold, before anything is held. docs/design/optimizer.md has the formula.

#include <cstdint>
#include <map>
#include <string>

#include "tandem/model/layout.h"
#include "tandem/model/options.h"

namespace tandem::planner {

/// A model as it will be trained.
struct TrainingPlan {
  model::ModelConfig config;
  model::Layout layout;
  int64_t element_bytes = 4;         ///< of weights: 4, or 2 with fp32 master weights beside them
  model::LoraOptions lora;
  int64_t swap_chunk_elements = 0;   ///< as train::OptimizerSetup; 0: the optimizer's state stays on the device
  bool on_cuda = false;              ///< whose kernels take longer chunks of logits, and other copies
};

/// Bytes by owner, as device::Arena::by_owner.
struct TrainingMemory {
  std::map<std::string, int64_t> device, host;
};

/// The adapters of one rank: in fp32, and as products read them; 0 where the whole model is trained.
struct AdapterBytes {
  int64_t values = 0, factors = 0;
};
AdapterBytes adapter_bytes(const TrainingPlan& plan, int rank);

/// Weights, adapters, gradients and optimizer of one rank; what passes take and free is not among them.
TrainingMemory training_memory(const TrainingPlan& plan, int rank);

/// By owner, for the log.
std::string to_text(const TrainingMemory& memory);

}  // namespace tandem::planner
