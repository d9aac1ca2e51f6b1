// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/row_shares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include "tandem/base/check.h"
#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

int64_t widest(const RowShares& shares) {
  int64_t most = 0;
  for (size_t i = 0; i + 1 < shares.bounds.size(); ++i) most = std::max(most, shares.bounds[i + 1] - shares.bounds[i]);
  return most;
}

// run(rank, rows of the whole, rows where every rank has room for the widest share)
void for_shares(const RowShares& shares, const at::Tensor& whole, const at::Tensor& padded, const auto& run) {
  const int64_t width = widest(shares);
  for (int r = 0; r < shares.group->size(); ++r) {
    const int64_t begin = shares.bounds[static_cast<size_t>(r)], count = shares.bounds[static_cast<size_t>(r) + 1] - begin;
    run(r, whole.narrow(0, begin, count), padded.narrow(0, r * width, count));
  }
}

bool is_even(const RowShares& shares) { return widest(shares) * shares.group->size() == shares.total(); }

std::vector<int64_t> with_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[0] = rows;
  return shape;
}

at::Tensor gathered(const at::Tensor& mine, const RowShares& shares) {
  at::Tensor whole = at::empty(with_rows(mine, shares.total()), mine.options().requires_grad(false));
  if (shares.total() == 0) return whole;
  if (is_even(shares)) {
    shares.group->all_gather(whole, mine.contiguous());
    return whole;
  }
  const int64_t width = widest(shares);
  at::Tensor in = at::zeros(with_rows(mine, width), whole.options());
  at::Tensor all = at::empty(with_rows(mine, width * shares.group->size()), whole.options());
  in.narrow(0, 0, mine.size(0)).copy_(mine);
  shares.group->all_gather(all, in);
  for_shares(shares, whole, all, [](int, at::Tensor to, const at::Tensor& from) { to.copy_(from); });
  return whole;
}

at::Tensor reduced(const at::Tensor& whole, const RowShares& shares) {
  const int64_t width = widest(shares);
  at::Tensor mine = at::empty(with_rows(whole, width), whole.options().requires_grad(false));
  if (shares.total() == 0) return mine;
  if (is_even(shares)) {
    shares.group->reduce_scatter(mine, whole.contiguous());
    return mine;
  }
  at::Tensor all = at::zeros(with_rows(whole, width * shares.group->size()), mine.options());
  for_shares(shares, whole, all, [](int, const at::Tensor& from, at::Tensor to) { to.copy_(from); });
  shares.group->reduce_scatter(mine, all);
  return mine.narrow(0, 0, shares.count());
}

}  // namespace

RowShares even_shares(comm::Group* group, int64_t rows) {
  const int64_t size = group ? group->size() : 1;
  RowShares shares{group, {}};
  for (int64_t r = 0; r <= size; ++r) shares.bounds.push_back(rows * r / size);
  return shares;
}

RowShares shares_of(const RowShares& whole, comm::Group& part, int first) {
  RowShares shares{&part, {}};
  const auto begin = whole.bounds.begin() + first;
  for (auto bound = begin; bound <= begin + part.size(); ++bound) shares.bounds.push_back(*bound - *begin);
  return shares;
}

at::Tensor gather_rows(const at::Tensor& mine, const RowShares& shares) {
  TANDEM_CHECK(mine.size(0) == shares.count(), "a share of ", shares.count(), " rows, not ", mine.size(0));
  if (!shares.group) return mine;
  at::Tensor out = gathered(plain(mine), shares);
  if (recording({mine})) record({mine}, {out}, [shares](const Gradients& d) { return Gradients{reduced(d[0], shares)}; });
  return out;
}

at::Tensor reduce_rows(const at::Tensor& whole, const RowShares& shares) {
  TANDEM_CHECK(whole.size(0) == shares.total(), shares.total(), " rows, not ", whole.size(0));
  if (!shares.group) return whole;
  at::Tensor out = reduced(plain(whole), shares);
  if (recording({whole})) record({whole}, {out}, [shares](const Gradients& d) { return Gradients{gathered(d[0], shares)}; });
  return out;
}

at::Tensor own_rows(const at::Tensor& whole, const RowShares& shares) {
  if (!shares.group) return whole;
  at::Tensor out = plain(whole).narrow(0, shares.begin(), shares.count()).clone();
  if (recording({whole}))
    record({whole}, {out}, [shares](const Gradients& d) {
      at::Tensor d_whole = at::zeros(with_rows(d[0], shares.total()), d[0].options());
      d_whole.narrow(0, shares.begin(), shares.count()).copy_(d[0]);
      return Gradients{d_whole};
    });
  return out;
}

at::Tensor sum_ranks(const at::Tensor& x, comm::Group& group) {
  TANDEM_CHECK(!recording({x}), "a sum over ranks has no gradient");
  at::Tensor total = x.contiguous().clone();
  group.all_reduce(total, comm::ReduceOp::kSum);
  return total;
}

at::Tensor scale_gradient(const at::Tensor& x, double factor) {
  if (factor == 1 || !recording({x})) return x;
  at::Tensor out = x.detach();
  record({x}, {out}, [factor](const Gradients& d) { return Gradients{at::mul(d[0], factor)}; });
  return out;
}

at::Tensor after_backward(const at::Tensor& x, std::function<void()> done) {
  if (!recording({x})) return x;
  at::Tensor out = x.detach();
  record({x}, {out}, [done = std::move(done)](const Gradients& d) {
    done();
    return d;
  });
  return out;
}

}  // namespace tandem::model::op
