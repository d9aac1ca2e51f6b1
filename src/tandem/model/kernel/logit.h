// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is made of logits: log-probabilities and their gradients, and the tokens that are drawn.
//
// R rows, V ids of a vocabulary or a shard of it, S shards (TP ranks).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tandem/base/error.h"

namespace tandem::model::kernel {

/// log softmax(logits / T), from sums over the logits below the largest: where one token is nearly certain, its log-probability keeps its
/// relative precision.
struct Softmax {
  at::Tensor softmax_R3;   ///< fp32: the largest logit; log of the sum of exp((logit - largest) / T); entropy
  at::Tensor logprobs_R;   ///< fp32, of the target
};

struct LogitGrad {
  Softmax of;
  at::Tensor targets_R;                ///< as stats() had them
  at::Tensor d_logprobs_R, d_entropy_R;  ///< either may be undefined
  float inv_temperature;
  c10::ScalarType dtype;               ///< of the result
};

/// What tokens are drawn by, one row of each for a draw. On the host; a backend brings it where it computes.
struct DrawArgs {
  at::Tensor rows_D;         ///< int64: of the logits
  at::Tensor temperature_D;  ///< fp64; 0: the largest logit, of equal ones the lowest id
  at::Tensor top_k_D;        ///< int64; 0: all
  at::Tensor top_p_D;        ///< fp64; 1: all
  at::Tensor uniform_D;      ///< fp64, in [0, 1)
  int64_t vocab_size;        ///< ids of the model; columns behind them are none
  int64_t num_tokens;        ///< only the first ones may be drawn
};
struct Drawn {
  int32_t token;
  float logprob;    ///< log_softmax(logits / T)[token] over the full vocabulary; T = 1 when greedy
  float kept_mass;  ///< log of the probability that top-k, top-p and num_tokens kept; 0 when everything was kept
};

/// The weights give no finite logits.
class NotFinite : public UserError {
 public:
  explicit NotFinite(double log_sum);
};

/// Of LogitKernels::draw, whose words have come to the host. Errors: NotFinite.
std::vector<Drawn> draws_of(const at::Tensor& words_4D);

struct LogitKernels {
  /// stats[R,4] of a shard's logits: the largest; the sum of exp((logit - largest) / T) without the largest itself; the sum of exp(z) z, z
  /// = (logit - largest) / T; the logit of the target, or 0 where another shard has it. targets count from the shard's first id.
  void (*stats)(const at::Tensor& logits_RV, const at::Tensor& targets_R, float inv_temperature, at::Tensor& stats_R4);
  /// From the statistics of all shards, in their order. The head and the sampler both end here, so that their log-probabilities agree bit
  /// for bit.
  Softmax (*combine)(const at::Tensor& stats_SR4, float inv_temperature);
  /// d_logits[R,V] = (onehot(target) - p) d_logprob / T - p (log p + entropy) d_entropy / T. It may take the memory of the logits.
  at::Tensor (*grad)(at::Tensor& logits_RV, const LogitGrad& in);
  /// hidden w^T in fp32, [R,L]: the scores of L labels. A row does not depend on its company.
  at::Tensor (*scores)(const at::Tensor& hidden_RH, const at::Tensor& w_LH);
  /// Tokens from logits[S,R,V] in fp32: words[4,D] in fp32 where the logits are, which one copy takes to the host, for draws_of. They are
  /// the bits of an int32 token, its log-probability, the kept mass, and a number that is not finite where the logits are not. Queued.
  at::Tensor (*draw)(const at::Tensor& logits_SRV, const DrawArgs& args);
};

}  // namespace tandem::model::kernel
