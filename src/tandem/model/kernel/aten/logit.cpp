// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/model/kernel/aten/aten.h"

namespace tandem::model::kernel::aten {
namespace {

// A sum over one row alone may be cut among threads; over two it is not.
at::Tensor twice_if_alone(const at::Tensor& rows) { return rows.size(0) == 1 ? at::cat({rows, rows}) : rows; }

// Whether a target is of this shard, and a column for each.
std::pair<at::Tensor, at::Tensor> columns_of_targets(const at::Tensor& targets, int64_t num_columns) {
  return {targets.ge(0).logical_and(targets.lt(num_columns)).unsqueeze(1), targets.clamp(0, num_columns - 1).unsqueeze(1)};
}

// The first three of stats(), of rows with temperatures of their own.
at::Tensor row_stats(const at::Tensor& logits, const at::Tensor& inv_temperature_R1) {
  const at::Tensor rows = twice_if_alone(logits), inv = twice_if_alone(inv_temperature_R1);
  const at::Tensor top = at::argmax(rows, 1, /*keepdim=*/true), largest = rows.gather(1, top);
  const at::Tensor z = (rows - largest) * inv, e = at::exp(z), weighted = (e * z).sum(1, true);
  return at::cat({largest, e.scatter_(1, top, 0).sum(1, true), weighted}, 1).narrow(0, 0, logits.size(0));
}

at::Tensor filled(const at::Tensor& like, int64_t rows, float value) { return at::empty({rows, 1}, like.options()).fill_(value); }

void stats(const at::Tensor& logits, const at::Tensor& targets, float inv_temperature, at::Tensor& out) {
  if (logits.size(0) == 0) return;
  const auto [ours, column] = columns_of_targets(targets, logits.size(1));
  out.narrow(1, 0, 3).copy_(row_stats(logits, filled(logits, logits.size(0), inv_temperature)));
  out.narrow(1, 3, 1).copy_(logits.gather(1, column) * ours);
}

// softmax_R3 of rows with temperatures of their own.
at::Tensor combined(const at::Tensor& all, const at::Tensor& inv_temperature_R1) {
  const auto part = [&](int64_t i) { return all.select(2, i); };  // [S,R]
  const at::Tensor top = at::argmax(part(0), 0, true), inv = inv_temperature_R1.squeeze(1);
  const at::Tensor largest = part(0).gather(0, top), below = (part(0) - largest) * inv, shrink = at::exp(below), sum = 1 + part(1);
  const auto with_top = [&](const at::Tensor& others, const at::Tensor& of_top) {
    at::Tensor total = of_top.gather(0, top).squeeze(0);
    const at::Tensor rest = others.scatter(0, top, 0);
    for (int64_t s = 0; s < rest.size(0); ++s) total = total + rest[s];
    return total;
  };
  const at::Tensor rest = with_top(sum * shrink, part(1)), weighted = with_top((part(2) + sum * below) * shrink, part(2));
  const at::Tensor log_sum = at::log1p(rest);
  return at::stack({largest.squeeze(0), log_sum, log_sum - weighted / (1 + rest)}, 1);
}

at::Tensor logprob_of(const at::Tensor& softmax_R3, const at::Tensor& logits_R, const at::Tensor& inv_temperature) {
  return (logits_R - softmax_R3.select(1, 0)) * inv_temperature - softmax_R3.select(1, 1);
}

Softmax combine(const at::Tensor& all, float inv_temperature) {
  const at::Tensor inv = filled(all, all.size(1), inv_temperature);
  if (all.size(1) == 0) return {at::empty({0, 3}, all.options()), at::empty({0}, all.options())};
  const at::Tensor softmax = combined(all, inv);
  return {softmax, logprob_of(softmax, all.select(2, 3).sum(0), inv.squeeze(1))};
}

at::Tensor grad(at::Tensor& logits, const LogitGrad& in) {
  if (logits.size(0) == 0) return logits.to(in.dtype);
  const auto part = [&](int64_t i) { return in.of.softmax_R3.narrow(1, i, 1); };
  const at::Tensor log_p = (logits - part(0)) * in.inv_temperature - part(1), p = at::exp(log_p);
  const auto [ours, column] = columns_of_targets(in.targets_R, logits.size(1));
  at::Tensor d = at::zeros_like(logits);
  if (in.d_logprobs_R.defined()) {
    const at::Tensor of_target = in.d_logprobs_R.unsqueeze(1) * in.inv_temperature;
    d.addcmul_(p, of_target, -1);
    const at::Tensor exact = -of_target * at::expm1(log_p.gather(1, column));  // where p is nearly 1, too
    d.scatter_(1, column, at::where(ours, exact, d.gather(1, column)));
  }
  // Where p is 0, so is p log p, whatever the logarithm is.
  if (in.d_entropy_R.defined())
    d.sub_(at::where(p > 0, p * (log_p + part(2)), 0) * (in.d_entropy_R.unsqueeze(1) * in.inv_temperature));
  return d.to(in.dtype);
}

at::Tensor scores(const at::Tensor& hidden, const at::Tensor& weight) {
  const at::Tensor x = in_float(hidden), w = in_float(weight);
  std::vector<at::Tensor> columns;
  for (int64_t l = 0; l < w.size(0); ++l) columns.push_back((x * w[l]).sum(1));
  return at::stack(columns, 1);
}

// At a time: their masses are fp64.
int64_t draw_rows(const at::Tensor& logits) { return logits.is_cpu() ? 16 : 256; }

// Some rows to draw from, and how.
struct Some {
  std::vector<at::Tensor> shards;  // [D, ids of a shard]
  at::Tensor inv_temperature_D1, top_k_D1, top_p_D1, uniform_D1, greedy_D1;
  bool filters;  // any of them by top-k or top-p

  Some(const at::Tensor& logits_SRV, const DrawArgs& args, int64_t first, int64_t count) {
    const auto column = [&](const at::Tensor& host) { return moved(host.narrow(0, first, count), logits_SRV).unsqueeze(1); };
    const at::Tensor rows = column(args.rows_D).squeeze(1);
    for (int64_t s = 0, left = args.vocab_size; s < logits_SRV.size(0); ++s, left -= logits_SRV.size(2))
      if (left > 0) shards.push_back(logits_SRV[s].narrow(1, 0, std::min(left, logits_SRV.size(2))).index_select(0, rows));
    const at::Tensor temperature = column(args.temperature_D);
    greedy_D1 = temperature.eq(0);
    inv_temperature_D1 = in_float(1.0 / temperature.masked_fill(greedy_D1, 1));
    top_k_D1 = column(args.top_k_D);
    top_p_D1 = column(args.top_p_D);
    uniform_D1 = column(args.uniform_D);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
    filters = (part(args.top_k_D) > 0).logical_or(part(args.top_p_D) < 1).any().item<bool>();
  }
  // Of the first ids alone.
  at::Tensor softmax(int64_t num_tokens) const {
    std::vector<at::Tensor> stats;
    for (const at::Tensor& shard : shards) {
      const int64_t ids = std::min(num_tokens, shard.size(1));
      if (ids > 0) stats.push_back(row_stats(shard.narrow(1, 0, ids), inv_temperature_D1));
      num_tokens -= ids;
    }
    return combined(at::stack(stats), inv_temperature_D1);
  }
};

// Which of the columns, whose masses are fp64, is the first at which they add up to more than a share `uniform` of the whole. The last with
// any mass, if rounding hides it.
at::Tensor walked_to(const at::Tensor& sums_DV, const at::Tensor& total_D1, const at::Tensor& uniform_D1) {
  const at::Tensor below = sums_DV.le(uniform_D1 * total_D1).sum(1, true), last = sums_DV.lt(total_D1).sum(1, true);
  return at::where(below < last, below, last);
}

// The columns that top-k and top-p keep, from best to worst: how many, their mass, and where a draw ends.
struct Filtered {
  at::Tensor token_D1, mass_D1;
};
Filtered filtered(const at::Tensor& logits_DV, const at::Tensor& mass_DV, const Some& some) {
  const at::Tensor order = std::get<1>(at::sort(logits_DV, /*stable=*/true, 1, /*descending=*/true));
  const at::Tensor column = at::arange(order.size(1), order.options()).unsqueeze(0);
  const at::Tensor most = at::where(some.top_k_D1 > 0, some.top_k_D1, order.size(1));
  const at::Tensor mass = mass_DV.gather(1, order).masked_fill(column >= most, 0), sums = mass.cumsum(1);
  const at::Tensor whole = sums.narrow(1, sums.size(1) - 1, 1);
  const at::Tensor needed = sums.lt(some.top_p_D1 * whole).sum(1, true).clamp_max(sums.size(1) - 1);  // the last that top-p keeps
  const at::Tensor kept = at::where(some.top_p_D1 < 1, sums.gather(1, needed), whole);
  return {order.gather(1, walked_to(sums, kept, some.uniform_D1)), kept};
}

void draw_some(const Some& some, const DrawArgs& args, at::Tensor words) {
  const at::Tensor softmax = some.softmax(args.vocab_size), all = at::cat(some.shards, 1), logits = all.narrow(1, 0, args.num_tokens);
  const bool takes_all = args.num_tokens == args.vocab_size;
  const at::Tensor allowed = takes_all ? softmax : some.softmax(args.num_tokens), top = allowed.narrow(1, 0, 1);
  const at::Tensor mass = at::exp((logits - top) * some.inv_temperature_D1).to(at::kDouble), cumulated = mass.cumsum(1);
  const at::Tensor plain = walked_to(cumulated, cumulated.narrow(1, args.num_tokens - 1, 1), some.uniform_D1);
  const at::Tensor filters = some.greedy_D1.logical_not().logical_and((some.top_k_D1 > 0).logical_or(some.top_p_D1 < 1));
  at::Tensor token = at::where(some.greedy_D1, at::argmax(logits, 1, true), plain);
  at::Tensor kept = takes_all ? at::zeros_like(top) : ((top - softmax.narrow(1, 0, 1)) * some.inv_temperature_D1 - softmax.narrow(1, 1, 1) +
                                                       allowed.narrow(1, 1, 1));
  if (some.filters) {
    const Filtered found = filtered(logits, mass, some);
    const at::Tensor log_mass =
        at::log(found.mass_D1) + ((top - softmax.narrow(1, 0, 1)) * some.inv_temperature_D1 - softmax.narrow(1, 1, 1));
    token = at::where(filters, found.token_D1, token);
    kept = at::where(filters, in_float(log_mass), kept);
  }
  words[0].view(at::kInt).copy_(token.squeeze(1));
  words[1].copy_(logprob_of(softmax, all.gather(1, token).squeeze(1), some.inv_temperature_D1.squeeze(1)));
  words[2].copy_(kept.squeeze(1).clamp_max(0));
  words[3].copy_(softmax.narrow(1, 0, 2).sum(1) + allowed.select(1, 0));
}

at::Tensor draw(const at::Tensor& logits, const DrawArgs& args) {
  TANDEM_CHECK(args.num_tokens > 0 && args.num_tokens <= args.vocab_size && args.vocab_size <= logits.size(0) * logits.size(2),
               args.num_tokens, " of ", args.vocab_size, " tokens");
  const int64_t D = args.rows_D.numel();
  at::Tensor words = at::empty({4, D}, logits.options());
  for (int64_t first = 0, step = draw_rows(logits); first < D; first += step) {
    const int64_t count = std::min(step, D - first);
    draw_some(Some(logits, args, first, count), args, words.narrow(1, first, count));
  }
  return words;
}

}  // namespace

const LogitKernels kLogitKernels = {stats, combine, grad, scores, draw};

}  // namespace tandem::model::kernel::aten
