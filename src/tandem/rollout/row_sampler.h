// SPDX-License-Identifier: Apache-2.0
#pragma once
// Draws the tokens of one step: the same on every rank of a tp and a pp group.

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "tandem/model/decoder.h"
#include "tandem/rollout/request.h"

namespace tandem::rollout {

/// A sequence that gets a token from a row of logits; several may draw from one.
struct RowDraw {
  int64_t row = 0;
  const Request* request = nullptr;
  int64_t num_drawn = 0;   ///< tokens it has, which is its place in its random stream
};

struct Drawn {
  int32_t token;
  float logprob, kept_mass;  ///< as model::kernel::Draws has them
};

/// S = TP ranks, R = rows, V = ids of a TP rank, as StepOutput has them; `logits_SRV` is fp32, and undefined but on the last pipeline
/// stage, which tells the others. Only ids below `num_tokens` are drawn.
/// Blocking: collective over the pp group. Errors: model::kernel::NotFinite.
std::vector<Drawn> draw_rows(const model::Decoder& decoder, int64_t num_tokens, const at::Tensor& logits_SRV,
                             std::span<const RowDraw> draws);

}  // namespace tandem::rollout
