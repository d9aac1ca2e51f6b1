// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/context/context_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "tandem/base/check.h"
#include "tandem/model/kernel/step.h"

namespace tandem::model::kernel {
namespace {

// Between the T packed rows and the same rows rank by rank, each rank's filled up to most_tokens: move(packed, by rank, bytes).
template <class Move>
void for_each_run(const ContextShare& share, const at::Tensor& packed, const at::Tensor& by_rank, const Move& move) {
  const size_t bytes = static_cast<size_t>(packed.size(1)) * packed.element_size();
  char *all = static_cast<char*>(packed.data_ptr()), *dealt = static_cast<char*>(by_rank.data_ptr());
  const auto at_row = [bytes](char* base, int64_t row) { return base + static_cast<size_t>(row) * bytes; };
  for (size_t r = 0; r < share.runs.size(); ++r) {
    int64_t row = static_cast<int64_t>(r) * by_rank.size(1);
    for (const TokenRun& run : share.runs[r]) {
      move(at_row(all, run.begin), at_row(dealt, row), static_cast<size_t>(run.length) * bytes);
      row += run.length;
    }
  }
}

int64_t all_tokens(const ContextShare& share) {
  int64_t n = 0;
  for (size_t r = 0; r < share.runs.size(); ++r) n += share.num_tokens(static_cast<int>(r));
  return n;
}

// kv[T,K] of all ranks from kv[O,K] of each; rows may be parts of wider rows.
at::Tensor gather_tokens(const at::Tensor& mine, const ContextParallel& parallel) {
  const int64_t most = parallel.share.most_tokens(), K = mine.size(1);
  at::Tensor padded = at::zeros({most, K}, mine.options());
  padded.narrow(0, 0, mine.size(0)).copy_(mine);
  at::Tensor by_rank = at::empty({parallel.group->size(), most, K}, mine.options());
  parallel.group->all_gather(by_rank, padded);
  at::Tensor all = at::empty({all_tokens(parallel.share), K}, mine.options());
  for_each_run(parallel.share, all, by_rank, [](char* packed, char* dealt, size_t bytes) { std::memcpy(packed, dealt, bytes); });
  return all;
}

// The sum over the ranks of d[T,K], of this rank's rows alone, into rows that may be parts of wider rows.
void scatter_sum(const at::Tensor& d, const ContextParallel& parallel, const at::Tensor& mine) {
  const int64_t most = parallel.share.most_tokens(), K = d.size(1);
  at::Tensor by_rank = at::zeros({parallel.group->size(), most, K}, d.options());
  for_each_run(parallel.share, d, by_rank, [](char* packed, char* dealt, size_t bytes) { std::memcpy(dealt, packed, bytes); });
  at::Tensor padded = at::empty({most, K}, d.options());
  parallel.group->reduce_scatter(padded, by_rank);
  at::Tensor(mine).copy_(padded.narrow(0, 0, mine.size(0)));
}

struct ContextStep final : Step {
  Trees trees;
  AttentionShape shape{};
  ContextParallel parallel;
  std::vector<TokenRun> own;
  variable_list apply(variable_list&& grads) override {
    const at::Tensor &qkv = saved[0], &kv = saved[1];
    at::Tensor d_qkv = at::empty_like(qkv), d_kv = at::empty_like(kv);
    const AttentionRows mine = all_rows_of(qkv, shape), d_mine = all_rows_of(d_qkv, shape);
    packed_attention_backward({mine.q_OQ, kv, own}, {saved[2], saved[3], grad_of(grads, 0)}, trees, shape, {d_mine.q_OQ, d_kv, own});
    scatter_sum(d_kv, parallel, d_mine.kv_TK);
    return {d_qkv};
  }
};

}  // namespace

at::Tensor context_attention(const at::Tensor& qkv, const Trees& trees, const AttentionShape& shape, const ContextParallel& parallel,
                             bool parity) {
  const int rank = parallel.group->rank();
  TANDEM_CHECK(std::ssize(parallel.share.runs) == parallel.group->size() && qkv.size(0) == parallel.share.num_tokens(rank),
               "a context-parallel rank's tokens");
  const bool record = recording({qkv});
  const AttentionRows mine = all_rows_of(qkv.detach(), shape);
  const AttentionRows in{mine.q_OQ, gather_tokens(mine.kv_TK, parallel), parallel.share.runs[static_cast<size_t>(rank)]};
  at::Tensor lse;
  at::Tensor o = parity ? packed_attention_by_row(in, trees, shape) : packed_attention(in, trees, shape, record ? &lse : nullptr);
  if (record) {
    auto step = make_step<ContextStep>({qkv});
    step->saved = {qkv.detach(), in.kv_TK, o.detach(), lse};
    step->trees = trees;
    step->shape = shape;
    step->parallel = parallel;
    step->own = in.own;
    attach(o, step);
  }
  return o;
}

}  // namespace tandem::model::kernel
