// SPDX-License-Identifier: Apache-2.0
// T rows, N heads, K kv heads, D head dimension; R tokens that attend one by one, C parts of the keys of each, P = R C.
#include "tandem/model/kernel/aten/flash.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "tandem/base/check.h"
#include "tandem/model/kernel/aten/aten.h"

namespace tandem::model::kernel::aten {
namespace {

constexpr int64_t kMostParts = 1 << 15;

at::Tensor heads(const at::Tensor& rows, int64_t D) { return rows.view({rows.size(0), rows.size(1) / D, D}); }

struct Segments {
  at::Tensor q_bounds, k_bounds;
  int64_t longest_q, longest_k;
  bool causal;
  std::optional<at::Tensor> used_k = {};  // keys of each segment that count; all without
};

struct Mixed {
  at::Tensor o_TND, lse_NT;
};

Mixed forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Segments& s, double scale) {
  const auto [o, lse, state, unused, mask] = at::_flash_attention_forward(q, k, v, s.q_bounds, s.k_bounds, s.longest_q, s.longest_k, 0.0,
                                                                          s.causal, false, scale, std::nullopt, std::nullopt, s.used_k);
  return {o, lse};
}

struct Gradients {
  at::Tensor dq, dk, dv;
};

struct Query {
  at::Tensor q_TND, o_TND, d_o_TND, lse_NT;
  Query at_rows(const at::Tensor& rows) const {
    return {q_TND.index_select(0, rows), o_TND.index_select(0, rows), d_o_TND.index_select(0, rows), lse_NT.index_select(1, rows)};
  }
};

// Of the part of the keys that are given: the mix and its log sum are those over all keys. The same bits each time, since the process is in
// libtorch's deterministic mode from its first tensor on CUDA on (device/backend/cuda/cuda.cpp).
Gradients backward(const Query& in, const at::Tensor& k, const at::Tensor& v, const Segments& s, double scale) {
  const at::Tensor none = at::empty({2}, k.options().dtype(at::kLong));  // of random numbers for dropout
  auto [dq, dk, dv] = at::_flash_attention_backward(in.d_o_TND, in.q_TND, k, v, in.o_TND, in.lse_NT, s.q_bounds, s.k_bounds, s.longest_q,
                                                    s.longest_k, 0.0, s.causal, none, none, scale);
  return {dq, dk, dv};
}

Segments self_of(const FlashPlan& p) { return {p.bounds, p.bounds, p.longest, p.longest, true}; }
Segments stems_of(const FlashPlan& p) { return {p.branch_bounds, p.stem_bounds, p.most_branch_tokens, p.longest_stem, false}; }

struct KeyHeads {
  at::Tensor k_TKD, v_TKD;
  KeyHeads(const at::Tensor& kv, const AttentionShape& s) {
    const int64_t width = s.num_kv_heads * s.head_dim;
    k_TKD = heads(kv.narrow(1, 0, width), s.head_dim);
    v_TKD = heads(kv.narrow(1, width, width), s.head_dim);
  }
};

}  // namespace

bool flash_serves(const at::Tensor& rows, const AttentionShape& shape) {
  const c10::ScalarType dtype = rows.scalar_type();
  return rows.is_cuda() && (dtype == at::kBFloat16 || dtype == at::kHalf) && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
}

FlashPlan flash_plan(const Trees& trees, at::Device device) {
  const at::TensorOptions ints = at::TensorOptions(at::kInt).device(device);
  FlashPlan plan;
  std::vector<int32_t> bounds = {0}, branch_bounds = {0}, stem_bounds = {0};
  std::vector<int64_t> branch_rows, stem_rows;
  const auto segment = [&](int64_t length) {
    if (length == 0) return;
    bounds.push_back(bounds.back() + static_cast<int32_t>(length));
    plan.longest = std::max(plan.longest, length);
  };
  for (const Tree& tree : trees) {
    TANDEM_CHECK(tree.begin == bounds.back(), "trees that do not lie end to end");
    segment(tree.stem);
    for (const int64_t length : tree.branches) segment(length);
    const int64_t stem_end = tree.begin + tree.stem, tokens = bounds.back() - stem_end;
    if (tree.stem == 0 || tokens == 0) continue;
    for (int64_t i = tree.begin; i < stem_end; ++i) stem_rows.push_back(i);
    for (int64_t i = stem_end; i < bounds.back(); ++i) branch_rows.push_back(i);
    branch_bounds.push_back(static_cast<int32_t>(branch_rows.size()));
    stem_bounds.push_back(static_cast<int32_t>(stem_rows.size()));
    plan.most_branch_tokens = std::max(plan.most_branch_tokens, tokens);
    plan.longest_stem = std::max(plan.longest_stem, tree.stem);
  }
  plan.bounds = at::tensor(bounds, ints);
  if (branch_rows.empty()) return plan;
  plan.branch_rows = at::tensor(branch_rows, ints.dtype(at::kLong));
  plan.stem_rows = at::tensor(stem_rows, ints.dtype(at::kLong));
  plan.branch_bounds = at::tensor(branch_bounds, ints);
  plan.stem_bounds = at::tensor(stem_bounds, ints);
  return plan;
}

at::Tensor flash_packed(const AttentionRows& in, const FlashPlan& plan, const AttentionShape& s, at::Tensor* lse_ON) {
  const at::Tensor q = heads(in.q_OQ, s.head_dim);
  const KeyHeads keys(in.kv_TK, s);
  Mixed all = forward(q, keys.k_TKD, keys.v_TKD, self_of(plan), s.scale());
  if (plan.branch_rows.defined()) {
    const Mixed stem = forward(q.index_select(0, plan.branch_rows), keys.k_TKD.index_select(0, plan.stem_rows),
                               keys.v_TKD.index_select(0, plan.stem_rows), stems_of(plan), s.scale());
    const at::Tensor own = all.lse_NT.index_select(1, plan.branch_rows), both = at::logaddexp(own, stem.lse_NT);
    const auto share = [&](const at::Tensor& lse, const at::Tensor& o) { return at::exp(lse - both).t().unsqueeze(2) * in_float(o); };
    const at::Tensor mixed = share(own, all.o_TND.index_select(0, plan.branch_rows)) + share(stem.lse_NT, stem.o_TND);
    all.o_TND.index_copy_(0, plan.branch_rows, mixed.to(q.scalar_type()));
    all.lse_NT.index_copy_(1, plan.branch_rows, both);
  }
  if (lse_ON) *lse_ON = all.lse_NT.t().contiguous();
  return all.o_TND.reshape({q.size(0), s.q_width()});
}

void flash_packed_backward(const AttentionRows& in, const AttentionOutput& out, const FlashPlan& plan, const AttentionShape& s,
                           const AttentionRows& d_in) {
  const int64_t D = s.head_dim, T = in.q_OQ.size(0), width = s.num_kv_heads * D;
  const Query query{heads(in.q_OQ, D), heads(out.o_OQ, D), heads(out.d_o_OQ, D), out.lse_ON.t().contiguous()};
  const KeyHeads keys(in.kv_TK, s);
  const Gradients self = backward(query, keys.k_TKD, keys.v_TKD, self_of(plan), s.scale());
  at::Tensor dq = self.dq, dk = self.dk, dv = self.dv;
  if (plan.branch_rows.defined()) {
    const Gradients of_stems = backward(query.at_rows(plan.branch_rows), keys.k_TKD.index_select(0, plan.stem_rows),
                                        keys.v_TKD.index_select(0, plan.stem_rows), stems_of(plan), s.scale());
    // Each row once, so the order of the sum is fixed.
    const auto added = [](const at::Tensor& to, const at::Tensor& rows, const at::Tensor& more) {
      return in_float(to).index_copy(0, rows, in_float(to.index_select(0, rows)) + in_float(more));
    };
    dq = added(dq, plan.branch_rows, of_stems.dq);
    dk = added(dk, plan.stem_rows, of_stems.dk);
    dv = added(dv, plan.stem_rows, of_stems.dv);
  }
  at::Tensor(d_in.q_OQ).copy_(dq.reshape({T, s.q_width()}));
  at::Tensor(d_in.kv_TK.narrow(1, 0, width)).copy_(dk.reshape({T, width}));
  at::Tensor(d_in.kv_TK.narrow(1, width, width)).copy_(dv.reshape({T, width}));
}

FlashPages flash_pages(int64_t R, int64_t C, int64_t block_tokens, at::Device device) {
  const at::TensorOptions ints = at::TensorOptions(at::kInt).device(device);
  return {block_tokens,
          C,
          at::arange(R, ints.dtype(at::kLong)).repeat_interleave(C),
          at::arange(R * C + 1, ints),
          at::zeros({R * C + 1}, ints),
          at::zeros({R * C}, ints)};
}

void flash_refill(FlashPages& pages, const at::Tensor& tables_RC, const at::Tensor& seen_R) {
  const int64_t C = pages.num_parts, B = pages.block_tokens;
  TANDEM_CHECK(tables_RC.numel() == pages.used_P.numel() && tables_RC.size(1) == C, "tables of another shape");
  const at::Tensor used_RC = (seen_R.unsqueeze(1) - at::arange(C, at::kLong) * B).clamp(0, B);
  pages.begin_P1.narrow(0, 0, tables_RC.numel()).copy_((tables_RC * B).view({-1}), /*non_blocking=*/true);
  pages.used_P.copy_(used_RC.view({-1}), true);
}

at::Tensor combine_parts(const at::Tensor& o_PND, const at::Tensor& lse_NP, const FlashPages& pages) {
  const int64_t C = pages.num_parts, R = o_PND.size(0) / C, N = o_PND.size(1), D = o_PND.size(2);
  const at::Tensor lse_RCN = lse_NP.t().reshape({R, C, N}).masked_fill(pages.used_P.eq(0).view({R, C, 1}),
                                                                      -std::numeric_limits<float>::infinity());
  const at::Tensor share = (lse_RCN - lse_RCN.logsumexp({1}, true)).exp_().unsqueeze(3);
  return (in_float(o_PND).view({R, C, N, D}) * share).sum(1).to(o_PND.scalar_type()).reshape({R, N * D});
}

// Of tokens [first, first + count).
FlashPages some_of(const FlashPages& p, int64_t first, int64_t count) {
  const int64_t C = p.num_parts, begin = first * C, size = count * C;
  return {p.block_tokens,
          C,
          p.row_P.narrow(0, begin, size),
          p.bounds.narrow(0, 0, size + 1),
          p.begin_P1.narrow(0, begin, size + 1),
          p.used_P.narrow(0, begin, size)};
}

at::Tensor flash_paged(const at::Tensor& q_RQ, const PagedCache& cache, const FlashPages& pages, const AttentionShape& s,
                       CombineParts combine) {
  // The kernels take 65535 segments at most, and each part has a query and a mix of its own.
  if (const int64_t R = q_RQ.size(0), most = std::max<int64_t>(1, kMostParts / pages.num_parts); R > most) {
    const at::Tensor out = at::empty({R, s.q_width()}, q_RQ.options());
    for (int64_t first = 0; first < R; first += most) {
      const int64_t count = std::min(most, R - first);
      FlashPages some = some_of(pages, first, count);
      some.row_P = some.row_P - first;
      out.narrow(0, first, count).copy_(flash_paged(q_RQ.narrow(0, first, count), cache, some, s, combine));
    }
    return out;
  }
  const int64_t D = s.head_dim, C = pages.num_parts;
  const auto flat = [&](const at::Tensor& side) { return side.view({-1, s.num_kv_heads, D}); };
  const at::Tensor q = heads(q_RQ, D), q_PND = C > 1 ? q.index_select(0, pages.row_P) : q;
  const Segments segments{pages.bounds, pages.begin_P1, 1, pages.block_tokens, false, pages.used_P};
  const Mixed part = forward(q_PND, flat(cache.keys), flat(cache.values), segments, s.scale());
  return C > 1 ? combine(part.o_TND, part.lse_NT, pages) : part.o_TND.reshape({q_RQ.size(0), s.q_width()});
}

}  // namespace tandem::model::kernel::aten
