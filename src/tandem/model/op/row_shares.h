// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of activations dealt over the ranks of a group: sequence parallelism. What tensor parallelism cuts sees all rows, what it
// leaves whole sees each row on one rank.
//
// T rows in all, t of this rank, H columns.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "tandem/comm/group.h"

namespace tandem::model::op {

/// Rank i of the group has rows [bounds[i], bounds[i+1]).
struct RowShares {
  comm::Group* group = nullptr;  ///< null: this rank has all rows
  std::vector<int64_t> bounds;

  int64_t begin() const { return bounds[index()]; }
  int64_t count() const { return bounds[index() + 1] - bounds[index()]; }
  int64_t total() const { return bounds.back(); }

 private:
  size_t index() const { return group ? static_cast<size_t>(group->rank()) : 0; }
};
/// As level as whole rows allow. `group` may be null.
RowShares even_shares(comm::Group* group, int64_t rows);
/// The rows that the ranks of `part` have between them: ranks [first, first + size) of the group of `whole`.
RowShares shares_of(const RowShares& whole, comm::Group& part, int first);

/// [T,H] of everyone's rows; the backward sums gradients over the ranks. Collective, as what follows, unless there are no rows.
at::Tensor gather_rows(const at::Tensor& mine_tH, const RowShares& shares);
/// This rank's rows of the sum over the ranks; the backward gathers.
at::Tensor reduce_rows(const at::Tensor& whole_TH, const RowShares& shares);
/// This rank's rows; the backward has zeros in place of the others. Not collective.
at::Tensor own_rows(const at::Tensor& whole_TH, const RowShares& shares);
/// The sum over the ranks; without gradient.
at::Tensor sum_ranks(const at::Tensor& x, comm::Group& group);

/// Identity; the backward multiplies by `factor`.
at::Tensor scale_gradient(const at::Tensor& x, double factor);
/// Identity; `done` is called in the backward pass once all that was made from x has had its turn.
at::Tensor after_backward(const at::Tensor& x, std::function<void()> done);

}  // namespace tandem::model::op
