// SPDX-License-Identifier: Apache-2.0
// Attention as products of batches: queries that see about as many keys are brought side by side, filled up to the longest.
//
// G parts of a batch, N heads, K kv heads, g = N / K, L rows of a part, C chunks of keys, D head dimension.
//
// Scores are those of powers of two, and what is hidden is minus infinity added to them: libtorch's exp and masked_fill take several times
// as long on the processor as its exp2 and its sum.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/model/kernel/aten/aten.h"
#include "tandem/model/kernel/aten/flash.h"

namespace tandem::model::kernel::aten {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kLeastGreatest = -1e38f;  // of the scores of a query that sees nothing: minus infinity less it is that still
constexpr int64_t kKeyChunk = 64;  // keys whose scores are summed together, row by row: fixed, so that rows have the bits of any company
constexpr int64_t kCells = 1 << 20;        // pairs of a query and a key of one batch, filled up
constexpr int64_t kMostFilled = 4;         // a batch holds parts of at least 1 - 1/4 of its longest
constexpr int64_t kRowsAtOnce = 64;        // tokens that attend one by one

at::Tensor long_tensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::TensorOptions(at::kLong).device(device));
}

// Queries of a stem or a branch that are here, and the keys before them.
struct Part {
  int64_t first_row, num_queries;  // of the query tensor
  int64_t first_seen;              // keys that the first of them sees
  int64_t stem_begin, stem, begin; // keys: those of the stem, then the part's own from `begin`

  int64_t num_keys() const { return first_seen + num_queries - 1; }
  int64_t token(int64_t key) const { return key < stem ? stem_begin + key : begin + key - stem; }
};

std::vector<Part> parts_of(const Trees& trees, const std::vector<TokenRun>& own) {
  std::vector<Part> parts;
  const auto add = [&](int64_t begin, int64_t length, int64_t stem_begin, int64_t stem) {
    int64_t row = 0;
    for (const TokenRun& run : own) {
      const int64_t first = std::max(run.begin, begin), end = std::min(run.begin + run.length, begin + length);
      if (first < end) parts.push_back({row + first - run.begin, end - first, stem + first - begin + 1, stem_begin, stem, begin});
      row += run.length;
    }
  };
  for (const Tree& tree : trees) {
    add(tree.begin, tree.stem, 0, 0);
    int64_t begin = tree.begin + tree.stem;
    for (const int64_t length : tree.branches) {
      add(begin, length, tree.begin, tree.stem);
      begin += length;
    }
  }
  return parts;
}

// Adds nothing to a pair of a query and a key, or minus infinity where the query does not see it.
at::Tensor bias_of(const at::Tensor& hidden) {
  return at::zeros(hidden.sizes(), hidden.options().dtype(at::kFloat)).masked_fill_(hidden, kNothing);
}

// By which a score is multiplied, so that its power of two is the exponential function of the scaled score.
double binary_scale(const AttentionShape& s) { return s.scale() * std::numbers::log2e; }

// Parts that are computed together, filled up to the most queries and keys of any: with queries of row 0 that see nothing, and with keys
// that nobody sees.
struct Batch {
  int64_t size = 0, num_queries = 0, num_keys = 0;  // G, and L of both
  at::Tensor query_GL, key_GL;                      // int64: rows of the query tensor, and tokens
  at::Tensor bias_G11LL;                            // fp32, of bias_of
  at::Tensor filled_F;                              // int64: queries that are there to fill up, in query_GL; undefined if none
  at::Tensor place_V, row_V;                        // int64: of the queries that are none of those, in query_GL, and their rows
};

Batch batch_of(std::span<const Part> parts, at::Device device) {
  Batch batch;
  batch.size = std::ssize(parts);
  for (const Part& part : parts) {
    batch.num_queries = std::max(batch.num_queries, part.num_queries);
    batch.num_keys = std::max(batch.num_keys, part.num_keys());
  }
  std::vector<int64_t> query, key, seen, place, row, filled;
  for (const Part& part : parts) {
    for (int64_t i = 0; i < batch.num_queries; ++i) {
      const bool is_there = i < part.num_queries;
      if (is_there) place.push_back(std::ssize(query)), row.push_back(part.first_row + i);
      else filled.push_back(std::ssize(query));
      query.push_back(is_there ? part.first_row + i : 0);
      seen.push_back(is_there ? part.first_seen + i : 0);
    }
    for (int64_t i = 0; i < batch.num_keys; ++i) key.push_back(i < part.num_keys() ? part.token(i) : 0);
  }
  const int64_t G = batch.size, L = batch.num_queries;
  batch.query_GL = long_tensor(query, device);
  batch.key_GL = long_tensor(key, device);
  const at::Tensor keys = at::arange(batch.num_keys, at::TensorOptions().dtype(at::kLong).device(device));
  batch.bias_G11LL = bias_of(keys.ge(long_tensor(seen, device).unsqueeze(1))).view({G, 1, 1, L, batch.num_keys});
  batch.place_V = long_tensor(place, device);
  batch.row_V = long_tensor(row, device);
  if (!filled.empty()) batch.filled_F = long_tensor(filled, device);
  return batch;
}

// What it makes of the lists it makes when it is first asked for. One thread at a time.
class Plan final : public PackedPlan {
 public:
  Plan(Trees all, std::vector<TokenRun> here, at::Device device) : PackedPlan(std::move(all), std::move(here)), device_(device) {}
  const std::vector<Batch>& batches() const;
  /// Where all queries are here.
  const FlashPlan& flash() const {
    if (!flash_) flash_ = flash_plan(trees, device_);
    return *flash_;
  }

 private:
  at::Device device_;
  mutable std::optional<std::vector<Batch>> batches_;
  mutable std::optional<FlashPlan> flash_;
};

std::vector<Batch> batches_of(std::vector<Part> parts, at::Device device) {
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.num_keys() > b.num_keys(); });
  std::vector<Batch> batches;
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin;
    const int64_t keys = parts[begin].num_keys();
    int64_t queries = 0;
    for (; end < parts.size(); ++end) {
      const int64_t most = std::max(queries, parts[end].num_queries);
      const bool fits =
          (keys - parts[end].num_keys()) * kMostFilled <= keys && static_cast<int64_t>(end - begin + 1) * most * keys <= kCells;
      if (end > begin && !fits) break;
      queries = most;
    }
    batches.push_back(batch_of(std::span(parts).subspan(begin, end - begin), device));
    begin = end;
  }
  return batches;
}

const std::vector<Batch>& Plan::batches() const {
  if (!batches_) batches_ = batches_of(parts_of(trees, own), device_);
  return *batches_;
}

std::shared_ptr<const PackedPlan> plan_packed(Trees trees, std::vector<TokenRun> own, at::Device device) {
  return std::make_shared<Plan>(std::move(trees), std::move(own), device);
}

const Plan& plan_of(const PackedPlan& plan) {
  const auto* own = dynamic_cast<const Plan*>(&plan);
  TANDEM_CHECK(own, "a plan of another backend");
  return *own;
}

// Rows of heads [G * L, heads D] as [G * kv heads, rows of a head, D] in fp32: query heads of one kv head lie one behind the other.
at::Tensor in_heads(const at::Tensor& rows, int64_t G, int64_t kv_heads, int64_t D) {
  const int64_t L = rows.size(0) / G, g = rows.size(1) / kv_heads / D;
  return in_float(rows).view({G, L, kv_heads, g, D}).permute({0, 2, 3, 1, 4}).reshape({G * kv_heads, g * L, D});
}
// Of rows of all tokens those at `index`, so. A copy.
at::Tensor by_head(const at::Tensor& rows, const at::Tensor& index, int64_t G, int64_t kv_heads, int64_t D) {
  return in_heads(rows.index_select(0, index), G, kv_heads, D);
}
// The same of queries for their gradients: those that are there to fill up are 0, so that nothing of them reaches keys, be it no number.
at::Tensor by_head_or_zero(const at::Tensor& rows, const Batch& b, int64_t kv_heads, int64_t D) {
  at::Tensor some = rows.index_select(0, b.query_GL);
  if (b.filled_F.defined()) some.index_fill_(0, b.filled_F, 0);
  return in_heads(some, b.size, kv_heads, D);
}
// The way back: [G * L, heads D].
at::Tensor by_row(const at::Tensor& heads, int64_t G, int64_t kv_heads, int64_t L) {
  const int64_t D = heads.size(2), g = heads.size(1) / L;
  return heads.view({G, kv_heads, g, L, D}).permute({0, 3, 1, 2, 4}).reshape({G * L, kv_heads * g * D});
}

struct Keys {
  at::Tensor k, v;  // [G * kv heads, L, D]
  Keys(const at::Tensor& kv, const Batch& b, const AttentionShape& s) {
    const int64_t width = s.num_kv_heads * s.head_dim;
    k = by_head(kv.narrow(1, 0, width), b.key_GL, b.size, s.num_kv_heads, s.head_dim);
    v = by_head(kv.narrow(1, width, width), b.key_GL, b.size, s.num_kv_heads, s.head_dim);
  }
};

// Of queries that are scaled, and what is hidden is minus infinity: [G * K, g * L, keys].
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const Batch& b, const AttentionShape& s) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2));
  scores.view({b.size, s.num_kv_heads, s.group(), b.num_queries, b.num_keys}).add_(b.bias_G11LL);
  return scores;
}

// Turns scores [*, keys] into powers of two of them less the row's greatest, which it returns: [*, 1].
at::Tensor to_powers(at::Tensor& scores) {
  at::Tensor greatest = scores.amax(-1, /*keepdim=*/true).clamp_min_(kLeastGreatest);
  scores.sub_(greatest).exp2_();
  return greatest;
}

// Of the queries that are none to fill up: [V, columns].
at::Tensor real_rows(const at::Tensor& rows, const Batch& b) { return b.filled_F.defined() ? rows.index_select(0, b.place_V) : rows; }

// All queries are here, in a form that the flash kernels take.
bool by_flash(const AttentionRows& in, const AttentionShape& s) {
  return flash_serves(in.q_OQ, s) && in.q_OQ.size(0) > 0 && in.q_OQ.size(0) == in.kv_TK.size(0);
}

at::Tensor packed(const AttentionRows& in, const PackedPlan& any_plan, const AttentionShape& s, at::Tensor* lse) {
  const Plan& plan = plan_of(any_plan);
  if (by_flash(in, s)) return flash_packed(in, plan.flash(), s, lse);
  const at::Tensor o = at::empty({in.q_OQ.size(0), s.q_width()}, in.q_OQ.options());
  if (lse) *lse = at::empty({o.size(0), s.num_heads}, o.options().dtype(at::kFloat));
  for (const Batch& b : plan.batches()) {
    const Keys keys(in.kv_TK, b, s);
    at::Tensor p = scores_of(by_head(in.q_OQ, b.query_GL, b.size, s.num_kv_heads, s.head_dim).mul_(binary_scale(s)), keys.k, b, s);
    const at::Tensor greatest = to_powers(p), sum = p.sum(-1, /*keepdim=*/true);
    const at::Tensor mixed = at::bmm(p, keys.v).div_(sum);
    o.index_copy_(0, b.row_V, real_rows(by_row(mixed, b.size, s.num_kv_heads, b.num_queries), b).to(o.scalar_type()));
    if (!lse) continue;
    const at::Tensor log_sum = at::log2(sum).add_(greatest).mul_(std::numbers::ln2);
    lse->index_copy_(0, b.row_V, real_rows(by_row(log_sum, b.size, s.num_kv_heads, b.num_queries), b));
  }
  return o;
}

// Rows of heads in the place of the batch's keys, added to the tokens that they are.
void add_keys(at::Tensor& d_kv, int64_t column, const at::Tensor& d, const Batch& b, const AttentionShape& s) {
  const at::Tensor rows = by_row(d, b.size, s.num_kv_heads, b.num_keys);
  at::Tensor to = d_kv.narrow(1, column, rows.size(1));
  if (to.is_cuda()) to.index_put_({b.key_GL}, rows, /*accumulate=*/true);  // in the order of the list; index_add_ has any there
  else to.index_add_(0, b.key_GL, rows);
}

void packed_backward(const AttentionRows& in, const AttentionOutput& out, const PackedPlan& any_plan, const AttentionShape& s,
                     const AttentionRows& d_in) {
  const Plan& plan = plan_of(any_plan);
  if (by_flash(in, s) && out.lse_ON.defined())
    return flash_packed_backward(in, out, plan.flash(), s, d_in);
  at::Tensor d_kv = at::zeros({in.kv_TK.size(0), in.kv_TK.size(1)}, in.kv_TK.options().dtype(at::kFloat));
  const int64_t K = s.num_kv_heads, D = s.head_dim;
  for (const Batch& b : plan.batches()) {
    const Keys keys(in.kv_TK, b, s);
    const at::Tensor q = by_head_or_zero(in.q_OQ, b, K, D).mul_(binary_scale(s)), o = by_head_or_zero(out.o_OQ, b, K, D);
    const at::Tensor d_o = by_head_or_zero(out.d_o_OQ, b, K, D);
    at::Tensor p = scores_of(q, keys.k, b, s);  // 0 for queries that are there to fill up
    if (out.lse_ON.defined()) {
      p.sub_(by_head_or_zero(out.lse_ON, b, K, 1).mul_(std::numbers::log2e)).exp2_();
    } else {
      to_powers(p);
      p.div_(p.sum(-1, /*keepdim=*/true).clamp_min_(1));  // a row's greatest counts 1
    }
    const at::Tensor d_s = at::bmm(d_o, keys.v.transpose(1, 2)).sub_((d_o * o).sum(2, true)).mul_(p);  // of scaled scores
    const at::Tensor d_q = at::bmm(d_s, keys.k).mul_(s.scale());
    add_keys(d_kv, 0, at::bmm(d_s.transpose(1, 2), q).mul_(std::numbers::ln2), b, s);  // q has the scale and log2(e)
    add_keys(d_kv, K * D, at::bmm(p.transpose(1, 2), d_o), b, s);
    at::Tensor(d_in.q_OQ).index_copy_(0, b.row_V, real_rows(by_row(d_q, b.size, K, b.num_queries), b).to(d_in.q_OQ.scalar_type()));
  }
  at::Tensor(d_in.kv_TK).copy_(d_kv);
}

// Queries one by one. Each has its keys and values in chunks of kKeyChunk, and sees what its bias says: products and sums of a chunk have
// one shape whatever the row's company is, and chunks add up in their order.
//   q [R, heads D], keys and values [R, K, C * kKeyChunk, D] in fp32, bias [R, C * kKeyChunk] of bias_of
at::Tensor attend_alone(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& bias,
                        const AttentionShape& s) {
  const int64_t R = q.size(0), C = keys.size(2) / kKeyChunk, K = s.num_kv_heads, g = s.group(), D = s.head_dim;
  const auto chunks = [&](const at::Tensor& t) { return t.view({R * K * C, kKeyChunk, D}); };
  const at::Tensor scaled = in_float(q).mul(binary_scale(s)).view({R, K, 1, g, D});
  const at::Tensor queries = scaled.expand({R, K, C, g, D}).reshape({R * K * C, g, D});
  at::Tensor scores = at::bmm(queries, chunks(keys).transpose(1, 2)).view({R, K, C, g, kKeyChunk});
  scores.add_(bias.view({R, 1, C, 1, kKeyChunk}));
  const at::Tensor p = scores.sub_(scores.amax({2, 4}, /*keepdim=*/true)).exp2_();
  const at::Tensor masses = p.sum(4, true), mixed = at::bmm(p.view({R * K * C, g, kKeyChunk}), chunks(values)).view({R, K, C, g, D});
  at::Tensor mass = masses.select(2, 0).clone(), sum = mixed.select(2, 0).clone();
  for (int64_t c = 1; c < C; ++c) mass.add_(masses.select(2, c)), sum.add_(mixed.select(2, c));
  return sum.div_(mass).reshape({R, s.q_width()});
}

int64_t whole_chunks(int64_t keys) { return (keys + kKeyChunk - 1) / kKeyChunk * kKeyChunk; }

// run(some rows, the most keys that any of them sees) for `rows`, whose numbers of keys the host knows.
void for_some(const std::vector<int64_t>& seen, const auto& run) {
  for (int64_t begin = 0; begin < std::ssize(seen); begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, std::ssize(seen) - begin);
    run(begin, count, whole_chunks(*std::max_element(seen.begin() + begin, seen.begin() + begin + count)));
  }
}

at::Tensor packed_by_row(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& s) {
  const at::Tensor o = at::empty({in.q_OQ.size(0), s.q_width()}, in.q_OQ.options());
  const int64_t K = s.num_kv_heads, D = s.head_dim;
  const at::Device device = o.device();
  for (const Part& part : parts_of(plan.trees, plan.own)) {
    std::vector<int64_t> tokens(static_cast<size_t>(whole_chunks(part.num_keys()))), seen(static_cast<size_t>(part.num_queries));
    for (int64_t key = 0; key < part.num_keys(); ++key) tokens[static_cast<size_t>(key)] = part.token(key);
    std::iota(seen.begin(), seen.end(), part.first_seen);
    const at::Tensor kv = in_float(in.kv_TK.index_select(0, long_tensor(tokens, device))).view({1, -1, 2 * K, D});
    for_some(seen, [&](int64_t begin, int64_t count, int64_t most) {
      const auto side = [&](int64_t first) {
        return kv.narrow(1, 0, most).narrow(2, first, K).transpose(1, 2).expand({count, K, most, D}).contiguous();
      };
      const at::Tensor some_seen =
          at::arange(part.first_seen + begin, part.first_seen + begin + count, at::TensorOptions(at::kLong).device(device));
      const at::Tensor bias = bias_of(at::arange(most, some_seen.options()).ge(some_seen.unsqueeze(1)));
      o.narrow(0, part.first_row + begin, count)
          .copy_(attend_alone(in.q_OQ.narrow(0, part.first_row + begin, count), side(0), side(K), bias, s));
    });
  }
  return o;
}

std::vector<int64_t> cache_shape(int64_t num_blocks, int64_t block_tokens, const AttentionShape& shape) {
  return {num_blocks, block_tokens, shape.num_kv_heads, shape.head_dim};
}

// Of some tokens that attend one by one.
struct Alone {
  at::Tensor token_R;  // int64
  at::Tensor row;      // int64 [R * K * keys], of the cache as [blocks * block_tokens * K, D]
  at::Tensor bias;     // [R, keys] of bias_of
};

struct TokensPlan final : PagedPlan {
  using PagedPlan::PagedPlan;
  at::Tensor block_T, offset_T;                  // int64: where each token's own key goes
  at::Tensor alone_A, tables_AB, seen_A1;        // tokens that attend one by one, their blocks, and how many keys they see
  std::vector<int64_t> alone, seen;              // the same on the host
  mutable std::optional<FlashPages> pages;       // the same for flash kernels, made with the first layer
  mutable std::optional<Alone> few;              // all that attend one by one, if they are few: made with the first layer
  bool is_fixed = false;                         // refilled for each step
  std::shared_ptr<const PackedPlan> whole;       // of the others; null if there are none
  at::Tensor whole_W;                            // those
};

// block_tokens is known with the cache alone: the plan keeps positions and tables.
std::shared_ptr<const PagedPlan> plan_paged(PagedTokens all, at::Device device) {
  auto plan = std::make_shared<TokensPlan>(std::move(all));
  const PagedTokens& t = plan->tokens;
  const int64_t T = t.positions_T.numel();
  std::vector<int64_t>& alone = plan->alone;
  std::vector<int64_t> whole;
  Trees trees;
  size_t next = 0;
  for (int64_t i = 0; i < T;) {
    if (next < t.whole.size() && t.whole[next].begin == i) {
      const Tree& tree = t.whole[next++];
      trees.push_back({std::ssize(whole), tree.stem, {}});
      for (int64_t end = i + tree.stem; i < end; ++i) whole.push_back(i);
    } else {
      plan->seen.push_back(t.positions_T.data_ptr<int64_t>()[i] + 1);
      alone.push_back(i++);
    }
  }
  if (!whole.empty()) {
    const int64_t num_whole = std::ssize(whole);
    plan->whole = plan_packed(std::move(trees), {{0, num_whole}}, device);
    plan->whole_W = long_tensor(whole, device);
  }
  plan->block_T = t.block_tables_SB.index_select(0, t.sequence_T).to(device);  // [T, blocks]
  plan->offset_T = t.positions_T.to(device);
  plan->alone_A = long_tensor(alone, device);
  plan->seen_A1 = long_tensor(plan->seen, device).unsqueeze(1);
  return plan;
}

// Of positions [*, n] in the cache, from blocks [*, B].
at::Tensor slots_of(const at::Tensor& tables, const at::Tensor& positions, int64_t block_tokens) {
  return tables.gather(1, positions.div(block_tokens, "floor")).to(at::kLong).mul_(block_tokens).add_(positions.remainder(block_tokens));
}

// The host's numbers of keys are the most there can be: they say how much is computed, the device's say what is seen.
std::shared_ptr<PagedPlan> plan_fixed(int64_t num_tokens, int64_t num_blocks, int64_t block_tokens, at::Device device) {
  auto plan = std::make_shared<TokensPlan>(PagedTokens{});
  plan->is_fixed = true;
  const auto room = [&](std::vector<int64_t> shape, c10::ScalarType dtype) {
    return at::zeros(shape, at::TensorOptions(dtype).device(device));
  };
  plan->block_T = room({num_tokens, num_blocks}, at::kInt);
  plan->offset_T = room({num_tokens}, at::kLong);
  plan->seen_A1 = room({num_tokens, 1}, at::kLong).fill_(1);
  plan->alone.resize(static_cast<size_t>(num_tokens));
  std::iota(plan->alone.begin(), plan->alone.end(), 0);
  plan->alone_A = long_tensor(plan->alone, device);
  plan->seen.assign(static_cast<size_t>(num_tokens), num_blocks * block_tokens);
  plan->pages = flash_pages(num_tokens, num_blocks, block_tokens, device);
  return plan;
}

void refill(PagedPlan& any_plan, const PagedTokens& t) {
  auto* plan = dynamic_cast<TokensPlan*>(&any_plan);
  TANDEM_CHECK(plan && t.whole.empty() && t.positions_T.numel() == plan->offset_T.numel(), "tokens of another plan");
  const at::Tensor tables = t.block_tables_SB.index_select(0, t.sequence_T), seen = t.positions_T + 1;
  plan->block_T.copy_(tables, /*non_blocking=*/true);
  plan->offset_T.copy_(t.positions_T, true);
  plan->seen_A1.copy_(seen.unsqueeze(1), true);
  flash_refill(*plan->pages, tables, seen);
}

// Made with the first layer, for the cache says how many tokens a block has.
const FlashPages& pages_of(const TokensPlan& plan, int64_t block_tokens) {
  if (plan.pages) return *plan.pages;
  const at::Tensor alone = long_tensor(plan.alone, at::kCPU), seen = long_tensor(plan.seen, at::kCPU);
  const at::Tensor tables = plan.tokens.block_tables_SB.index_select(0, plan.tokens.sequence_T.index_select(0, alone));
  plan.pages = flash_pages(tables.size(0), tables.size(1), block_tokens, plan.alone_A.device());
  flash_refill(*plan.pages, tables, seen);
  return *plan.pages;
}

// Of the tokens [begin, begin + count) of those, whose longest sees `most` keys.
Alone alone_of(const TokensPlan& plan, int64_t begin, int64_t count, int64_t most, const PagedCache& cache) {
  const at::Tensor token = plan.alone_A.narrow(0, begin, count), seen = plan.seen_A1.narrow(0, begin, count);
  const int64_t kv_heads = cache.keys.size(-2);
  // Positions behind a token's own have no block of its own: they count as its first, and are not seen.
  const at::Tensor column = at::arange(most, seen.options()).unsqueeze(0).expand({count, most}), hidden = column.ge(seen);
  const at::Tensor slot = slots_of(plan.block_T.index_select(0, token), column.masked_fill(hidden, 0), cache.block_tokens);
  const at::Tensor head = at::arange(kv_heads, seen.options()).view({1, kv_heads, 1});
  return {token, slot.unsqueeze(1).mul(kv_heads).add(head).view({-1}), bias_of(hidden)};
}

// Keys and values of all tokens, to where their positions lie in their blocks.
void write_cache(const at::Tensor& qkv, const at::Tensor& tables_TB, const at::Tensor& positions_T, const AttentionShape& s,
                 const PagedCache& cache) {
  const int64_t K = s.num_kv_heads, D = s.head_dim, Q = s.q_width();
  const at::Tensor own = slots_of(tables_TB, positions_T.unsqueeze(1), cache.block_tokens).squeeze(1);
  cache.keys.view({-1, K, D}).index_copy_(0, own, qkv.narrow(1, Q, K * D).reshape({-1, K, D}));
  cache.values.view({-1, K, D}).index_copy_(0, own, qkv.narrow(1, Q + K * D, K * D).reshape({-1, K, D}));
}

}  // namespace

at::Tensor paged_by(const PagedSteps& steps, const at::Tensor& qkv, const PagedPlan& any_plan, const AttentionShape& s,
                    const PagedCache& cache) {
  const auto* plan = dynamic_cast<const TokensPlan*>(&any_plan);
  TANDEM_CHECK(plan && plan->offset_T.numel() == qkv.size(0), "paged attention");
  const int64_t K = s.num_kv_heads, D = s.head_dim, Q = s.q_width();
  steps.write_cache(qkv, plan->block_T, plan->offset_T, s, cache);
  const at::Tensor o = at::empty({qkv.size(0), Q}, qkv.options());
  if (plan->whole) {
    const at::Tensor rows = qkv.index_select(0, plan->whole_W);
    o.index_copy_(0, plan->whole_W, packed(columns_of(rows, s), *plan->whole, s, nullptr));
  }
  if (flash_serves(qkv, s) && !plan->alone.empty()) {
    const FlashPages& pages = pages_of(*plan, cache.block_tokens);
    if (!plan->whole) return flash_paged(qkv.narrow(1, 0, Q), cache, pages, s, steps.combine);
    o.index_copy_(0, plan->alone_A, flash_paged(qkv.index_select(0, plan->alone_A).narrow(1, 0, Q), cache, pages, s, steps.combine));
    return o;
  }
  const bool keeps = !plan->is_fixed && std::ssize(plan->alone) <= kRowsAtOnce;
  for_some(plan->seen, [&](int64_t begin, int64_t count, int64_t most) {
    std::optional<Alone> now = keeps ? plan->few : std::nullopt;
    if (!now) now = alone_of(*plan, begin, count, most, cache);
    if (keeps) plan->few = now;
    const Alone& some = *now;
    const auto side = [&](const at::Tensor& of) {
      return in_float(of.view({-1, D}).index_select(0, some.row)).view({some.bias.size(0), K, some.bias.size(1), D});
    };
    const at::Tensor q = qkv.index_select(0, some.token_R).narrow(1, 0, Q);
    o.index_copy_(0, some.token_R, attend_alone(q, side(cache.keys), side(cache.values), some.bias, s).to(o.scalar_type()));
  });
  return o;
}

namespace {

// A block is one part of what a flash kernel attends to.
int64_t block_tokens(at::DeviceType type) { return type == at::kCUDA ? 256 : 16; }

at::Tensor paged(const at::Tensor& qkv, const PagedPlan& plan, const AttentionShape& shape, const PagedCache& cache) {
  return paged_by({write_cache, combine_parts}, qkv, plan, shape, cache);
}

}  // namespace

const AttentionKernels kAttentionKernels = {plan_packed, packed, packed_by_row, packed_backward, cache_shape, 1, block_tokens,
                                           plan_paged, plan_fixed, refill, paged};

}  // namespace tandem::model::kernel::aten
