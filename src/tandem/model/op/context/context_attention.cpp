// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/context/context_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "tandem/base/check.h"
#include "tandem/model/op/step.h"

namespace tandem::model::op {
namespace {

// kv[T,K] of all ranks from kv[O,K] of each; rows may be parts of wider rows.
at::Tensor gather_tokens(const Kernels& k, const at::Tensor& mine, const ContextPlan& plan) {
  const int64_t most = plan.most_tokens, K = mine.size(1);
  at::Tensor padded = at::zeros({most, K}, mine.options());
  padded.narrow(0, 0, mine.size(0)).copy_(mine);
  at::Tensor by_rank = at::empty({plan.group->size(), most, K}, mine.options());
  plan.group->all_gather(by_rank, padded);
  return k.row().gather(by_rank.view({-1, K}), plan.row_T);
}

// The sum over the ranks of d[T,K], of this rank's rows alone, into rows that may be parts of wider rows.
void scatter_sum(const Kernels& k, const at::Tensor& d, const ContextPlan& plan, const at::Tensor& mine) {
  const int64_t most = plan.most_tokens, K = d.size(1), ranks = plan.group->size();
  const at::Tensor by_rank = k.row().scatter(d, plan.row_T, ranks * most).view({ranks, most, K});
  at::Tensor padded = at::empty({most, K}, d.options());
  plan.group->reduce_scatter(padded, by_rank);
  at::Tensor(mine).copy_(padded.narrow(0, 0, mine.size(0)));
}

}  // namespace

ContextPlan context_plan(const Kernels& k, kernel::Trees trees, const ContextParallel& parallel) {
  const ContextShare& share = parallel.share;
  TANDEM_CHECK(std::ssize(share.runs) == parallel.group->size(), "a context-parallel rank's tokens");
  const int64_t most = share.most_tokens();
  int64_t num_tokens = 0;
  for (int rank = 0; rank < parallel.group->size(); ++rank) num_tokens += share.num_tokens(rank);
  at::Tensor row = at::empty({num_tokens}, at::kLong);
  for (size_t rank = 0; rank < share.runs.size(); ++rank) {
    int64_t at = static_cast<int64_t>(rank) * most;
    for (const TokenRun& run : share.runs[rank]) {
      std::iota(row.data_ptr<int64_t>() + run.begin, row.data_ptr<int64_t>() + run.begin + run.length, at);
      at += run.length;
    }
  }
  return {parallel.group, k.attention().plan_packed(std::move(trees), share.runs[static_cast<size_t>(parallel.group->rank())], k.device()),
          most, row.to(k.device())};
}

at::Tensor context_attention(const Kernels& k, const at::Tensor& qkv, std::shared_ptr<const ContextPlan> plan,
                             const AttentionShape& shape) {
  const bool records = recording({qkv});
  const kernel::AttentionRows mine = columns_of(plain(qkv), shape);
  const kernel::AttentionRows in{mine.q_OQ, gather_tokens(k, mine.kv_TK, *plan)};
  at::Tensor lse;
  at::Tensor o = k.parity() ? k.attention().packed_by_row(in, *plan->packed, shape)
                            : k.attention().packed(in, *plan->packed, shape, records ? &lse : nullptr);
  if (records)
    record({qkv}, {o}, [&k, qkv = qkv.detach(), kv = in.kv_TK, o = o.detach(), lse, plan = std::move(plan), shape](const Gradients& d) {
      const at::Tensor d_qkv = at::empty_like(qkv), d_kv = at::empty_like(kv);
      const kernel::AttentionRows d_mine = columns_of(d_qkv, shape);
      k.attention().packed_backward({columns_of(qkv, shape).q_OQ, kv}, {o, lse, d[0]}, *plan->packed, shape, {d_mine.q_OQ, d_kv});
      scatter_sum(k, d_kv, *plan, d_mine.kv_TK);
      return Gradients{d_qkv};
    });
  return o;
}

}  // namespace tandem::model::op
