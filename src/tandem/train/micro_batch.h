// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows packed end to end, without padding, up to a budget of tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/model/kernel/attention.h"

namespace tandem::train {

/// One sequence to score or to train on. The tokens stay the caller's.
struct Row {
  std::span<const int32_t> prompt;
  std::span<const int32_t> response;
  std::span<const float> behavior;   ///< rollout log-probabilities; empty in supervised training
  std::vector<float> old;            ///< of the policy before the update; empty: the current one, detached
  std::vector<float> reference;      ///< of the reference model; empty if the recipe has none
  double advantage = 0;

  int64_t num_tokens() const { return static_cast<int64_t>(prompt.size() + response.size()); }
};

/// T tokens of some rows; R response tokens among them.
struct MicroBatch {
  std::vector<size_t> rows;          ///< indices into what was packed
  at::Tensor ids_T, positions_T;     ///< int64
  model::kernel::Offsets offsets;    ///< of the sequences in T
  at::Tensor predictors_R;           ///< int64: the token before each response token
  at::Tensor targets_R;              ///< int64: the response tokens
  std::vector<int64_t> response_offsets;  ///< of the rows in R, with the end
};

/// Rows in order, cut where the budget is full; a row longer than the budget gets a pass of its own.
std::vector<MicroBatch> pack(std::span<const Row> rows, int64_t budget_tokens);

/// Which of `parts` each row goes to, such that tokens are level: longest first, to the lightest part.
std::vector<int> balance(std::span<const int64_t> lengths, int parts);

}  // namespace tandem::train
