// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rows of tokens go to which expert, and the way there and back: a sort where this rank has the experts, an all-to-all
// where other ranks have some.
//
// T tokens, W columns, k experts per token, S rows to the experts held here, by expert.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tandem/comm/group.h"

namespace tandem::model::kernel {

/// Where the experts are. Index i of the peers holds experts bounds[i] to bounds[i+1].
struct ExpertPlace {
  std::vector<int64_t> bounds;
  int index = 0;                 ///< of this rank
  comm::Group* peers = nullptr;  ///< ranks with other tokens, in order of their index; null: this rank has all experts

  int64_t num_held() const { return bounds[static_cast<size_t>(index) + 1] - bounds[static_cast<size_t>(index)]; }
};

/// Ownership  uses the peers, which must outlive it.
/// Threads    one. With peers every function but num_rows and for_experts is collective over them.
class Dispatch {
 public:
  /// `experts_Tk`: int64, of all experts.
  Dispatch(const at::Tensor& experts_Tk, const ExpertPlace& place);

  int64_t num_rows() const { return offsets_.back(); }
  /// run(expert held here, first row, rows) for experts that have any; side by side or one after the other.
  void for_experts(bool side_by_side, const std::function<void(int64_t, int64_t, int64_t)>& run) const;

  /// [S,W]: each row a copy of its token's row of x.
  at::Tensor gather(const at::Tensor& x_TW) const;
  /// [T,W]: each token the sum of its rows, in the order of its choice.
  at::Tensor combine(const at::Tensor& y_SW) const;
  /// fp32 [S] from [T,k], and back.
  at::Tensor to_rows(const at::Tensor& weights_Tk) const;
  at::Tensor to_tokens(const at::Tensor& weights_S) const;

 private:
  void sort(const at::Tensor& experts_Tk, int64_t num_experts);
  void agree(const ExpertPlace& place);
  at::Tensor send(const at::Tensor& rows) const;
  at::Tensor send_back(const at::Tensor& rows) const;

  int64_t num_tokens_, num_choices_;
  std::vector<int64_t> offsets_;      // [experts held here + 1]
  std::vector<int64_t> choice_;       // of each row of this rank's tokens, by expert: token * k + choice
  std::vector<int64_t> row_;          // [T * k]: where a choice stands among those
  comm::Group* peers_;
  std::vector<int64_t> sent_, received_;  // rows, by peer
  std::vector<int64_t> arrival_;          // row of S at which each received row stands
};

}  // namespace tandem::model::kernel
