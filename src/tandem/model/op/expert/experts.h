// SPDX-License-Identifier: Apache-2.0
#pragma once
// A mixture of experts: each token goes through the k experts its router chooses (router.h). Tokens are sorted by expert, so that an
// expert is one product over its tokens, forward and backward.
//
// T tokens, H hidden, E experts, F width of one (as this rank holds it), k experts per token, S rows, by expert (dispatch.h).

#include <ATen/core/Tensor.h>

#include "tandem/model/op/expert/dispatch.h"
#include "tandem/model/op/expert/router.h"

namespace tandem::model::op {

/// Of the experts that this rank holds: gate_up [E*2F, H], each its gate, then its up; down [E*H, F].
struct ExpertWeights {
  Parameter gate_up, down;
  ExpertPlace place;
};

/// Sum over a token's experts of weight * down(silu(gate) * up). Where other ranks hold some of an expert's columns, this rank's
/// part of that sum. Collective over place.peers, forward and backward.
at::Tensor experts(const Kernels& k, const at::Tensor& x_TH, const Routing& routing, const ExpertWeights& experts);

}  // namespace tandem::model::op
