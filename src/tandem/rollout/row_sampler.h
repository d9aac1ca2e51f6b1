// SPDX-License-Identifier: Apache-2.0
#pragma once
// Draws the tokens of one step: the same on every rank of a tp and a pp group.

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "tandem/device/host_copy.h"
#include "tandem/model/decoder.h"
#include "tandem/model/kernel/logit.h"
#include "tandem/rollout/request.h"

namespace tandem::rollout {

/// A sequence that gets a token from a row of logits; several may draw from one.
struct RowDraw {
  int64_t row = 0;
  const Request* request = nullptr;
  int64_t num_drawn = 0;   ///< tokens it has, which is its place in its random stream
};

using model::kernel::Drawn;

/// Draws tokens for rows, a step at a time. S = TP ranks, R = rows, V = ids of a TP rank, as StepOutput has them, D = draws.
///
/// Ownership  uses the decoder.
/// Threads    one per engine.
class RowSampler {
 public:
  /// Only ids below `num_tokens` are drawn.
  RowSampler(const model::Decoder& decoder, int64_t num_tokens) : decoder_(decoder), num_tokens_(num_tokens) {}

  /// Queues the draws. `logits_SRV` is fp32, and undefined but on the last pipeline stage.
  void begin(const at::Tensor& logits_SRV, std::span<const RowDraw> draws);
  /// int32[D] tokens that begin() drew, where the logits are, before the host knows them; undefined without any, and after finish().
  at::Tensor tokens_D() const;
  /// What begin() drew; the last pipeline stage tells the others. Blocking: collective over the pp group. Errors: model::kernel::NotFinite.
  std::vector<Drawn> finish();

 private:
  const model::Decoder& decoder_;
  const int64_t num_tokens_;
  at::Tensor words_4D_;  // of tokens_D(), which says when there are any
  device::HostCopy copy_;
  size_t num_draws_ = 0;
};

}  // namespace tandem::rollout
