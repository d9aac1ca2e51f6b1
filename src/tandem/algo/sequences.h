// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the sequences of a micro-batch and back to their tokens. T = packed tokens, S = sequences

#include <ATen/core/Tensor.h>

namespace tandem::algo {

/// The trainable tokens of packed sequences.
class Sequences {
 public:
  /// `offsets_S` says where each starts in T; both are aligned with what the methods take.
  Sequences(const at::Tensor& trainable_T, const at::Tensor& offsets_S);

  /// Sum of each sequence's trainable tokens. Carries the gradient.
  at::Tensor sum(const at::Tensor& values_T) const;
  /// Mean of them; 0 for a sequence without any. `eps` is added to the count, as some references do.
  at::Tensor mean(const at::Tensor& values_T, double eps = 0) const;
  /// Largest of them; `empty` for a sequence without any. No gradient.
  at::Tensor max(const at::Tensor& values_T, double empty) const;
  /// To every token the value of its sequence.
  at::Tensor to_tokens(const at::Tensor& values_S) const { return values_S.index_select(0, sequence_T_); }
  const at::Tensor& trainable_T() const { return mask_T_; }
  /// Trainable tokens of each.
  at::Tensor num_tokens(at::ScalarType dtype) const;

 private:
  at::Tensor mask_T_, sequence_T_;
  int64_t num_sequences_;
};

}  // namespace tandem::algo
