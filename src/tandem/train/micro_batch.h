// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows packed end to end, without padding, up to a budget of tokens. Rows that stand next to each other with the same prompt
// (the samples of a group) share it: it goes through the model once. docs/design/shared_prompts.md

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/model/decoder.h"

namespace tandem::train {

/// One sequence to score or to train on, with its columns: one value per response token. Tokens stay the caller's.
struct Row {
  std::span<const int32_t> prompt;
  std::span<const int32_t> response;
  std::span<const float> behavior;   ///< rollout log-probabilities; empty in supervised training
  std::vector<float> old;            ///< of the policy before the update; empty: the current one, detached
  std::vector<float> behind;         ///< by how many versions each token's policy is behind the weights that this step makes; then old is
                                     ///< algo/correction.h:loglinear_proximal
  bool fresh = false;                ///< sampled by the very weights that are trained now
  std::vector<float> reference;      ///< of the reference model; empty if the algorithm needs none
  std::span<const int16_t> routes;   ///< data::Sample::routes, to send tokens to the experts the rollout chose; empty: the router chooses
  std::vector<float> advantages;     ///< one per response token; empty in supervised training
  std::vector<float> values, returns;  ///< what the critic said before the updates, and should have said; empty without one
  std::span<const uint8_t> sampled;  ///< data::Sample::trainable: 0 for a token that no policy chose; empty: all are chosen
  std::vector<uint8_t> trainable;    ///< one per response token, 0 where it is not trained on; empty: all are

  int64_t num_tokens() const { return static_cast<int64_t>(prompt.size() + response.size()); }
  int64_t num_trainable() const;
  bool is_sampled(size_t t) const { return sampled.empty() || sampled[t]; }
};

/// T tokens of some rows: all but the last of each, which predicts nothing. R response tokens among the rows. Where context-parallel
/// ranks share it, `tokens` and `targets_R` are this rank's part.
struct MicroBatch {
  std::vector<size_t> rows;               ///< indices into what was packed
  model::TokenBatch tokens;               ///< its rows_R: the token before each response token
  model::kernel::Trees trees;             ///< how the T tokens see each other
  at::Tensor targets_R;                   ///< int64: the response tokens
  at::Tensor trainable_R;                 ///< bool: which of all R are trained on
  std::vector<int64_t> response_offsets;  ///< of the rows in R, with the end
  model::op::ContextParallel parallel;             ///< without a group: nobody shares it
  std::vector<std::vector<int64_t>> responses_by_rank; ///< with one: which of the R response tokens each rank predicts, rising
};

/// Whether the prompt of both goes through the model once where `b` comes next after `a`.
bool share_prompt(const Row& a, const Row& b);

/// Rows in order, in as few passes of at most the budget as that allows, and level; a row longer than the budget gets a pass of
/// its own.
std::vector<MicroBatch> pack(std::span<const Row> rows, int64_t budget_tokens);
/// Of these rows alone.
std::vector<MicroBatch> pack(std::span<const Row> rows, std::span<const size_t> which, int64_t budget_tokens);

/// Leaves the rank of `cp` its part of a whole micro-batch.
void deal_tokens(MicroBatch& batch, comm::Group& cp);
/// [R] from each rank's values of its part, in the order of R; the gradient is expected of each rank, the same. Collective.
at::Tensor whole_responses(const MicroBatch& batch, const at::Tensor& mine);

/// Appends micro-batches without a token, up to `count`: where peers have more, a rank runs along.
void pad_micro_batches(std::vector<MicroBatch>& batches, int64_t count);

}  // namespace tandem::train
