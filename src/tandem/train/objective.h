// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a step minimises: a function of one micro-batch's log-probabilities. The step sums it over micro-batches and ranks.

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "tandem/train/micro_batch.h"
#include "tandem/train/step_totals.h"

namespace tandem::algo {
struct Algorithm;
}

namespace tandem::train {

/// The part of the step's loss that a micro-batch adds: a scalar that carries the gradient. It reads the counts of the whole step, and
/// adds to the sums what the report tells.
using Objective = std::function<at::Tensor(const MicroBatch& batch, const at::Tensor& logprobs_R, StepTotals& totals)>;

/// The algorithm's policy loss and its penalty against the reference. Rows and algorithm must outlive it.
Objective policy_objective(std::span<const Row> rows, const algo::Algorithm& algorithm);

/// The mean negative log-likelihood of the response tokens.
Objective supervised_objective();

}  // namespace tandem::train
