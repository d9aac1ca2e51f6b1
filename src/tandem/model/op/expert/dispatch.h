// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rows of tokens go to which expert, and the way there and back: a sort where this rank has the experts, an all-to-all
// where other ranks have some.
//
// T tokens, W columns, k experts per token, S rows to the experts held here, by expert.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/model/kernel/kernels.h"

namespace tandem::model::op {

/// Where the experts are. Index i of the peers holds experts bounds[i] to bounds[i+1].
struct ExpertPlace {
  std::vector<int64_t> bounds;
  int index = 0;                 ///< of this rank
  comm::Group* peers = nullptr;  ///< ranks with other tokens, in order of their index; null: this rank has all experts

  int64_t num_held() const { return bounds[static_cast<size_t>(index) + 1] - bounds[static_cast<size_t>(index)]; }
};

/// Ownership  uses the kernels and the peers, which must outlive it.
/// Threads    one. With peers every function but rows() is collective over them.
class Dispatch {
 public:
  /// `experts_Tk`: int64, of all experts.
  Dispatch(const kernel::Kernels& kernels, const at::Tensor& experts_Tk, const ExpertPlace& place);

  /// Of the experts held here.
  const kernel::ExpertRows& rows() const { return rows_; }

  /// [S,W]: each row a copy of its token's row of x.
  at::Tensor gather(const at::Tensor& x_TW) const;
  /// [T,W]: each token the sum of its rows, in the order of its choice.
  at::Tensor combine(const at::Tensor& y_SW) const;
  /// fp32 [S] from [T,k], and back.
  at::Tensor to_rows(const at::Tensor& weights_Tk) const;
  at::Tensor to_tokens(const at::Tensor& weights_S) const;

 private:
  void agree(const ExpertPlace& place);
  at::Tensor send(const at::Tensor& rows) const;
  at::Tensor send_back(const at::Tensor& rows) const;

  const kernel::Kernels& kernels_;
  int64_t num_tokens_, num_choices_;
  kernel::Sorted sorted_;                 // this rank's tokens, by expert of all
  kernel::ExpertRows rows_;
  comm::Group* peers_;
  std::vector<int64_t> sent_, received_;  // rows, by peer
  at::Tensor arrival_, departure_;  // int64: row of S at which each received row stands, and the received row that stands at each of S
};

}  // namespace tandem::model::op
