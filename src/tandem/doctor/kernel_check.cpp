// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/kernel_check.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/rng.h"
#include "tandem/doctor/check.h"
#include "tandem/doctor/naive.h"
#include "tandem/model/kernel/kernels.h"

namespace tandem::doctor {
namespace {

namespace k = model::kernel;
using k::AttentionShape, k::ExpertRows;

struct KernelSizes {
  int64_t tokens, hidden, inner, vocab;
  int64_t embedded;  // entries of a shard of the vocabulary
  int64_t updated;   // parameters
  std::vector<AttentionShape> heads;
  struct Product {
    int64_t rows, columns, sum;  // of so many terms
  };
  std::vector<Product> products;
};

const KernelSizes& sizes_of(Extent extent) {
  static const KernelSizes odd{77, 52, 36, 211, 211, 1037, {{6, 2, 20}, {6, 2, 32}},  // some kernels take multiples of 8 alone
                               {{1, 64, 48}, {33, 52, 30}, {77, 130, 96}}};
  static const KernelSizes of_models{67, 3584, 4736, 151'936, 18'992, 5'000'011, {{28, 4, 128}, {14, 2, 64}},
                                     {{1, 4608, 3584}, {64, 896, 18'944}, {515, 4864, 896}}};
  return extent == Extent::kOddSizes ? odd : of_models;
}

struct Turn {
  c10::ScalarType dtype;
  Extent extent;
  uint64_t seed;
};

// Inputs are numbered, so that no two are alike, and each kernel runs on two sets of them: what it kept of the first must not show in the
// second.
class Checker {
 public:
  Checker(const k::Backend& backend, at::Device device, const Turn& turn, KernelReport& report)
      : backend(backend),
        device(device),
        size(sizes_of(turn.extent)),
        dtype(turn.dtype),
        numerics{dtype, false, backend.product.plain_choice(dtype)},
        seed_(turn.seed),
        report_(report) {}

  const k::Backend& backend;
  const at::Device device;
  const KernelSizes& size;
  const c10::ScalarType dtype;
  const k::Numerics numerics;

  // N(0, deviation) on the device.
  at::Tensor random(std::vector<int64_t> shape, double deviation = 1) { return random_as(std::move(shape), dtype, deviation); }
  at::Tensor random_float(std::vector<int64_t> shape, double deviation = 1) { return random_as(std::move(shape), at::kFloat, deviation); }
  at::Tensor random_ids(int64_t n, int64_t below) {
    at::Tensor ids = at::empty({n}, at::kLong);
    for (int64_t i = 0; i < n; ++i) ids.data_ptr<int64_t>()[i] = stream_.below(below);
    return ids.to(device);
  }
  at::Tensor empty(std::vector<int64_t> shape, c10::ScalarType type) const {
    return at::empty(shape, at::TensorOptions(type).device(device));
  }
  at::Tensor ones(std::vector<int64_t> shape) const { return at::ones(shape, at::TensorOptions(at::kFloat).device(device)); }

  /// Each element within a share of the largest: of what the sum of products rounds to in fp32, and of the last place of what is rounded.
  void expect(const char* kernel, const char* what, const at::Tensor& got, const at::Tensor& want, double loose = 1) {
    ++report_.num_compared;
    const at::Tensor value = got.to(at::kCPU).to(at::kDouble), wanted = want.detach().to(at::kDouble);
    if (value.sizes() != wanted.sizes()) return fail(kernel, join_text(what, " has another shape"));
    if (wanted.numel() == 0) return;
    const double rounded = got.scalar_type() == at::kBFloat16 ? 1.0 / 128 : 0, through = dtype == at::kBFloat16 ? 1.0 / 64 : 2e-5;
    const double allowed = std::max(got.scalar_type() == at::kFloat ? 2e-5 : through, rounded) * loose;
    const at::Tensor error = (value - wanted).abs() / (wanted.abs().max() * allowed + 1e-30);
    const double worst = at::isfinite(value).all().item<bool>() ? error.max().item<double>() : INFINITY;
    double& most = report_.worst[kernel];
    most = std::max(most, worst);
    if (!(worst <= 1)) fail(kernel, join_text(what, " is off by ", worst, " times what is allowed"));
  }
  void expect_equal(const char* kernel, const char* what, const at::Tensor& got, const at::Tensor& want) {
    ++report_.num_compared;
    report_.worst.try_emplace(kernel, 0);
    if (!got.to(at::kCPU).equal(want.to(at::kCPU))) fail(kernel, join_text(what, " differs"));
  }
  void fail(const char* kernel, const std::string& what) {
    const auto is_known = [&](const KernelFault& fault) { return fault.kernel == kernel; };
    if (std::ranges::none_of(report_.faults, is_known)) report_.faults.push_back({kernel, join_text(c10::toString(dtype), ": ", what)});
  }

 private:
  at::Tensor random_as(std::vector<int64_t> shape, c10::ScalarType type, double deviation) {
    at::Tensor t = at::empty(shape, at::kFloat);
    for (int64_t i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = static_cast<float>(stream_.normal() * deviation);
    return t.to(type).to(device);
  }

  const uint64_t seed_;
  RandomStream stream_{seed_, 41};
  KernelReport& report_;
};

at::Tensor wide(const at::Tensor& t) { return t.defined() ? t.to(at::kCPU).to(at::kDouble) : t; }
at::Tensor leaf(const at::Tensor& t) { return wide(t).clone().requires_grad_(true); }

// ---- products

void check_products(Checker& c) {
  const k::ProductKernels& p = c.backend.product;
  for (const auto& [M, N, K] : c.size.products) {
    const at::Tensor x = c.random({M, K}), w = c.random({N, K}), dy = c.random({M, N});
    at::Tensor y = c.empty({M, N}, c.dtype), logits = c.empty({M, N}, at::kFloat), dx = c.empty({M, K}, c.dtype), dw = c.ones({N, K});
    p.forward(c.numerics, y, x, w);
    c.expect("product.forward", "x w^T", y, at::matmul(wide(x), wide(w).t()));
    p.forward_float(c.numerics, logits, x, w);
    c.expect("product.forward_float", "x w^T", logits, at::matmul(wide(x), wide(w).t()));
    p.input_grad(c.numerics, dx, dy, w);
    c.expect("product.input_grad", "dy w", dx, at::matmul(wide(dy), wide(w)));
    p.weight_grad(c.numerics, dw, dy, x);
    c.expect("product.weight_grad", "dw + dy^T x", dw, at::matmul(wide(dy).t(), wide(x)) + 1);
    if (const k::PackedWeight packed = p.pack(c.numerics, w); packed.defined())
      c.expect("product.packed_product", "x w^T", p.packed_product(x, packed), at::matmul(wide(x), wide(w).t()));
  }
}

// One of five experts has no row, and numbers of rows are odd.
void check_grouped_products_of(int64_t N, int64_t K, Checker& c) {
  const k::ProductKernels& p = c.backend.product;
  const ExpertRows rows{{0, 3, 40, 40, 41, 77}};
  const at::Tensor x = c.random({77, K}), w = c.random({5 * N, K}), dy = c.random({77, N});
  const at::Tensor from = leaf(x), weight = leaf(w);
  naive::grouped(from, weight, rows).backward(wide(dy));
  c.expect("product.grouped_forward", "x w^T", p.grouped_forward(c.numerics, x, w, rows), naive::grouped(wide(x), wide(w), rows));
  c.expect("product.grouped_input_grad", "dy w", p.grouped_input_grad(c.numerics, dy, w, rows), from.grad());
  at::Tensor dw = c.ones({5 * N, K});
  p.grouped_weight_grad(c.numerics, dw, dy, x, rows);
  c.expect("product.grouped_weight_grad", "dw + dy^T x", dw, weight.grad() + 1);
}
void check_grouped_products(Checker& c) {
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{24, 30}, {48, 64}}) check_grouped_products_of(N, K, c);
}

// ---- rows

void check_embedding(Checker& c) {
  const int64_t T = c.size.tokens, H = c.size.hidden, V = c.size.embedded;
  const at::Tensor table = c.random({V, H}), ids = c.random_ids(T, 2 * V), d = c.random({T, H});
  ids.narrow(0, T - 1, 1).fill_(V);  // the last row counts
  const at::Tensor whole =
      leaf(at::cat({at::zeros({V / 2, H}, at::kDouble), wide(table), at::zeros({V, H}, at::kDouble)}));
  const at::Tensor want = whole.index_select(0, ids.to(at::kCPU));
  want.backward(wide(d));
  c.expect("row.embed", "a row", c.backend.row.embed(table, ids, V / 2), want);
  at::Tensor grad = c.ones({V, H});
  c.backend.row.embed_backward(grad, d, ids, V / 2);
  c.expect("row.embed_backward", "the gradient", grad, whole.grad().narrow(0, V / 2, V) + 1);
}

void check_norm(Checker& c) {
  const int64_t T = c.size.tokens, H = c.size.hidden;
  const k::RowKernels& row = c.backend.row;
  const at::Tensor x = c.random({T, H}), delta = c.random({T, H}), weight = c.random({H});
  const at::Tensor d_sum = c.random({T, H}), d_normed = c.random({T, H});
  for (const bool has_delta : {false, true}) {
    const k::Normed got = row.add_rms_norm(x, has_delta ? delta : at::Tensor(), weight, 1e-5);
    const at::Tensor sum = has_delta ? (wide(x) + wide(delta)).to(c.dtype) : x, in = leaf(sum), w = leaf(weight);
    const at::Tensor want = naive::rms_norm(in, w, 1e-5);
    (want * wide(d_normed)).sum().backward();
    c.expect("row.add_rms_norm", "the sum", got.sum_TH, wide(sum));
    c.expect("row.add_rms_norm", "the normed row", got.normed_TH, want);
    c.expect("row.add_rms_norm", "1 / rms", got.rstd_T, (wide(sum).square().mean(1) + 1e-5).rsqrt());
    at::Tensor weight_grad = c.ones({H});
    const at::Tensor dx = row.rms_norm_backward({d_normed, has_delta ? d_sum : at::Tensor(), got.sum_TH, weight, got.rstd_T}, weight_grad);
    c.expect("row.rms_norm_backward", "dx", dx, has_delta ? in.grad() + wide(d_sum) : in.grad());
    c.expect("row.rms_norm_backward", "the weight's gradient", weight_grad, w.grad() + 1);
  }
}

void check_heads(Checker& c) {
  const int64_t T = c.size.tokens;
  const AttentionShape& shape = c.size.heads[0];
  const k::RowKernels& row = c.backend.row;
  const at::Tensor qkv = c.random({T, shape.width()}), norms = c.random({2 * shape.head_dim}),
                   d = c.random({T, shape.width()});
  const at::Tensor in = leaf(qkv), weights = leaf(norms), want = naive::head_norm(in, weights, 1e-5, shape);
  want.backward(wide(d));
  const k::NormedHeads got = row.head_norm(qkv, norms, 1e-5, shape);
  c.expect("row.head_norm", "the heads", got.qkv_TW, want);
  at::Tensor grad = c.ones({2 * shape.head_dim});
  c.expect("row.head_norm_backward", "dx", row.head_norm_backward({d, qkv, norms, got.rstd_TN}, shape, grad), in.grad());
  c.expect("row.head_norm_backward", "the weights' gradient", grad, weights.grad() + 1);

  const k::Rotation rotation{c.random_float({T, shape.head_dim}), c.random_ids(T, T), shape};
  const k::Rotation host{rotation.cos_sin_PD.to(at::kCPU), rotation.positions_T.to(at::kCPU), shape};
  const at::Tensor bias = c.random({shape.width()}), from = leaf(qkv), added = leaf(bias), turned = naive::rope(from, added, host);
  turned.backward(wide(d));
  c.expect("row.rope", "the heads", row.rope(qkv, bias, rotation, true), turned);
  const at::Tensor back = row.rope(d, {}, rotation, false);
  c.expect("row.rope", "the gradient", back, from.grad());
  at::Tensor bias_grad = c.ones({shape.width()});
  row.add_rows(bias_grad, back);
  c.expect("row.add_rows", "the sum", bias_grad, wide(back).sum(0) + 1);
}

void check_activation(Checker& c) {
  const int64_t T = c.size.tokens, F = c.size.inner;
  const k::RowKernels& row = c.backend.row;
  const at::Tensor gate_up = c.random({T, 2 * F}, 3), d = c.random({T, F}), in = leaf(gate_up),
                   want = naive::swiglu(in);
  want.backward(wide(d));
  c.expect("row.swiglu", "the rows", row.swiglu(gate_up), want);
  c.expect("row.swiglu_backward", "the gradient", row.swiglu_backward(gate_up, d), in.grad());
  const at::Tensor factors = c.random_float({T});
  c.expect("row.scale", "the rows", row.scale(d, factors), wide(d) * wide(factors).unsqueeze(1));
  const at::Tensor other = c.random({T, F});
  c.expect("row.dot", "the products", row.dot(d, other), (wide(d) * wide(other)).sum(1));
  const at::Tensor listed = c.random_ids(2 * T, T);
  c.expect_equal("row.gather", "a row", row.gather(d, listed), d.index_select(0, listed));
  const at::Tensor places = (at::arange(T, at::kLong) * 2 + 1).flip(0).to(c.device);
  c.expect_equal("row.scatter", "a row", row.scatter(d, places, 2 * T + 3),
                 at::zeros({2 * T + 3, F}, d.options()).index_copy_(0, places, d));
}

// ---- attention

// Each against the keys it sees, of all tokens or of every second run of five.
void check_packed_attention(const AttentionShape& shape, Checker& c) {
  const k::Trees trees = {{0, 1, {}}, {1, 17, {}}, {18, 23, {9, 1}}, {51, 200, {}}};
  constexpr int64_t kAll = 251;
  const k::AttentionKernels& attention = c.backend.attention;
  const at::Tensor qkv = c.random({kAll, shape.width()}), d_all = c.random({kAll, shape.q_width()}), marks = naive::sees(trees, kAll);
  for (const bool all : {true, false}) {
    std::vector<k::TokenRun> own;
    std::vector<int64_t> rows;
    for (int64_t begin = 0; begin < kAll; begin += all ? kAll : 10) {
      own.push_back({begin, std::min<int64_t>(all ? kAll : 5, kAll - begin)});
      for (int64_t i = 0; i < own.back().length; ++i) rows.push_back(begin + i);
    }
    const at::Tensor host_rows = at::tensor(rows, at::kLong), here = host_rows.to(c.device);
    const at::Tensor in = leaf(qkv), d_o = d_all.index_select(0, here);
    const k::AttentionRows columns = columns_of(in, shape);
    const at::Tensor want =
        naive::attention({columns.q_OQ.index_select(0, host_rows), columns.kv_TK}, marks.index_select(0, host_rows), shape);
    want.backward(wide(d_o));
    const auto plan = attention.plan_packed(trees, own, c.device);
    const k::AttentionRows of_all = columns_of(qkv, shape), mine{of_all.q_OQ.index_select(0, here), of_all.kv_TK};
    at::Tensor lse;
    const at::Tensor o = attention.packed(mine, *plan, shape, &lse);
    c.expect("attention.packed", "the mixed values", o, want);
    c.expect("attention.packed_by_row", "the mixed values", attention.packed_by_row(mine, *plan, shape), want);
    const k::AttentionRows d_in{at::empty_like(mine.q_OQ), at::empty_like(of_all.kv_TK)};
    attention.packed_backward(mine, {o, lse, d_o}, *plan, shape, d_in);
    c.expect("attention.packed_backward", "dq", d_in.q_OQ, in.grad().narrow(1, 0, shape.q_width()).index_select(0, host_rows), 4);
    c.expect("attention.packed_backward", "dk and dv", d_in.kv_TK,
             in.grad().narrow(1, shape.q_width(), 2 * shape.num_kv_heads * shape.head_dim));
  }
}

// Two sequences, 70 and 20 tokens, in blocks that lie anywhere: first their prompts, one of them whole, then token by token.
void check_paged_attention(const AttentionShape& shape, Checker& c) {
  const k::AttentionKernels& attention = c.backend.attention;
  const int64_t block_tokens = std::lcm<int64_t>(16, attention.block_multiple), lengths[] = {70, 20};
  const int64_t blocks = (lengths[0] + block_tokens - 1) / block_tokens;
  const at::Tensor qkv = c.random({90, shape.width()});
  const std::vector<int64_t> sizes = attention.cache_shape(2 * blocks, block_tokens, shape);
  const k::PagedCache cache{at::full(sizes, 7.0, qkv.options()), at::full(sizes, NAN, qkv.options()), block_tokens};
  at::Tensor tables = at::zeros({2, blocks}, at::kInt);
  for (int64_t s = 0; s < 2; ++s)
    for (int64_t b = 0; b < blocks; ++b) tables.data_ptr<int32_t>()[s * blocks + b] = static_cast<int32_t>(2 * (blocks - 1 - b) + s);
  std::vector<at::Tensor> first(2), second(2);
  const auto run = [&](int64_t from_0, int64_t to_0, int64_t from_1, int64_t to_1) {
    const int64_t n = to_0 - from_0, m = to_1 - from_1;
    k::PagedTokens tokens{tables, at::cat({at::zeros({n}, at::kLong), at::ones({m}, at::kLong)}),
                          at::cat({at::arange(from_0, to_0, at::kLong), at::arange(from_1, to_1, at::kLong)}), {}};
    if (from_1 == 0 && m >= 16) tokens.whole = {{n, m, {}}};
    const at::Tensor rows = at::cat({qkv.narrow(0, from_0, n), qkv.narrow(0, 70 + from_1, m)});
    const at::Tensor o = attention.paged(rows, *attention.plan_paged(tokens, c.device), shape, cache);
    first.push_back(o.narrow(0, 0, n)), second.push_back(o.narrow(0, n, m));
  };
  first.clear(), second.clear();
  run(0, 41, 0, 18);
  run(41, 42, 18, 19);
  run(42, 70, 19, 20);
  const k::Trees trees = {{0, lengths[0], {}}, {lengths[0], lengths[1], {}}};
  const at::Tensor want = naive::attention(columns_of(wide(qkv), shape), naive::sees(trees, 90), shape);
  c.expect("attention.paged", "the mixed values", at::cat({at::cat(first), at::cat(second)}), want);
}

template <void (*check_of)(const AttentionShape&, Checker&)>
void for_all_heads(Checker& c) {
  for (const AttentionShape& shape : c.size.heads) check_of(shape, c);
}

// ---- logits

void check_logits(Checker& c) {
  const int64_t T = c.size.tokens, H = c.size.hidden, V = c.size.vocab;
  const k::LogitKernels& logit = c.backend.logit;
  constexpr float kInverse = 1 / 0.7f;
  const at::Tensor logits = c.random_float({T, V}, 3), targets = c.random_ids(T, V);
  const at::Tensor d_logprob = c.random_float({T}), d_entropy = c.random_float({T});
  const at::Tensor in = leaf(logits), log_p = naive::log_probabilities(in, 1 / static_cast<double>(kInverse));
  const at::Tensor of_target = log_p.gather(1, targets.to(at::kCPU).unsqueeze(1)).squeeze(1), entropy = -(log_p.exp() * log_p).sum(1);
  (of_target * wide(d_logprob) + entropy * wide(d_entropy)).sum().backward();
  const int64_t cut = V * 100 / 211;  // two shards
  at::Tensor stats = c.empty({2, T, 4}, at::kFloat);
  for (int64_t s = 0; s < 2; ++s) {
    at::Tensor part = stats[s];
    logit.stats(logits.narrow(1, s * cut, s == 0 ? cut : V - cut).contiguous(), targets - s * cut, kInverse, part);
  }
  const at::Tensor first = wide(logits).narrow(1, 0, cut), most = first.amax(1, true), z = (first - most) * static_cast<double>(kInverse);
  c.expect("logit.stats", "the largest", stats[0].select(1, 0), most.squeeze(1));
  c.expect("logit.stats", "the sum", stats[0].select(1, 1), z.exp().sum(1) - 1);
  c.expect("logit.stats", "the weighted sum", stats[0].select(1, 2), (z.exp() * z).sum(1));
  const k::Softmax softmax = logit.combine(stats, kInverse);
  c.expect("logit.combine", "the log-probability", softmax.logprobs_R, of_target);
  c.expect("logit.combine", "the entropy", softmax.softmax_R3.select(1, 2), entropy, 2);
  at::Tensor copy = logits.clone();
  c.expect("logit.grad", "the gradient", logit.grad(copy, {softmax, targets, d_logprob, d_entropy, kInverse, c.dtype}), in.grad());
  const at::Tensor hidden = c.random({T, H}), labels = c.random({3, H});
  c.expect("logit.scores", "the scores", logit.scores(hidden, labels), at::matmul(wide(hidden), wide(labels).t()));
}

// Of each row, that the token is the one that the sorted or cumulated masks say; greedy, plain, and with top-k and top-p.
void check_draws_of(int64_t vocab_size, int64_t shards, bool has_filters, Checker& c) {
  const at::Tensor logits = c.random_float({shards, 8, (vocab_size + 1) / shards}, 2);  // the last column is no id
  constexpr int64_t kDraws = 32;
  const int64_t drawable = vocab_size * 200 / 211;
  k::DrawArgs args{at::arange(kDraws, at::kLong).remainder(8), at::full({kDraws}, 0.8, at::kDouble), at::zeros({kDraws}, at::kLong),
                   at::ones({kDraws}, at::kDouble), at::empty({kDraws}, at::kDouble), vocab_size, drawable};
  RandomStream random(11, 3);
  for (int64_t d = 0; d < kDraws; ++d) {
    args.uniform_D[d] = random.uniform();
    if (d % 4 == 1) args.temperature_D[d] = 0.0;
    if (has_filters && d % 4 >= 2) args.top_k_D[d] = 9;
    if (has_filters && d % 4 == 3) args.top_p_D[d] = 0.7;
  }
  const std::vector<k::Drawn> got = k::draws_of(c.backend.logit.draw(logits, args).to(at::kCPU));
  const at::Tensor all = wide(logits).transpose(0, 1).reshape({8, -1}).narrow(1, 0, vocab_size);
  std::vector<double> logprobs, kept;
  for (int64_t d = 0; d < kDraws; ++d) {
    const double temperature = args.temperature_D[d].item<double>() == 0 ? 1.0 : 0.8;
    const at::Tensor log_p = naive::log_probabilities(all.narrow(0, d % 8, 1), temperature)[0], allowed = log_p.narrow(0, 0, drawable);
    const bool filters = has_filters && d % 4 >= 2;
    const auto [sorted, order] = at::sort(allowed, /*stable=*/true, 0, /*descending=*/true);
    const at::Tensor mass = filters ? sorted.exp().narrow(0, 0, 9) : allowed.exp(), sums = mass.cumsum(0);
    double whole = sums[-1].item<double>();
    if (filters && d % 4 == 3) whole = sums[sums.lt(0.7 * whole).sum().item<int64_t>()].item<double>();
    const int64_t token = got[static_cast<size_t>(d)].token, place = filters ? order.ne(token).cumprod(0).sum().item<int64_t>() : token;
    const auto sum_before = [&](int64_t end) { return end > 0 ? sums[end - 1].item<double>() : 0.0; };
    const double point = args.uniform_D[d].item<double>() * whole, slack = 1e-6 * whole;  // of exp in float32
    const bool is_there = 0 <= place && place < sums.numel();
    const bool is_right = d % 4 == 1 ? token == allowed.argmax().item<int64_t>()
                                     : is_there && sum_before(place) <= point + slack && point - slack <= sum_before(place + 1);
    if (!is_right) {
      c.fail("logit.draw", join_text("draw ", d, " is token ", token, ", which is not at ", point / whole, " of the kept mass"));
      return;
    }
    logprobs.push_back(log_p[token].item<double>());
    kept.push_back(std::log(filters ? whole : allowed.exp().sum().item<double>()));
  }
  const auto expect = [&](const char* what, float k::Drawn::*member, const std::vector<double>& want) {
    std::vector<float> values;
    for (const k::Drawn& each : got) values.push_back(each.*member);
    c.expect("logit.draw", what, at::tensor(values), at::tensor(want, at::kDouble));
  };
  expect("the log-probability", &k::Drawn::logprob, logprobs);
  expect("the kept mass", &k::Drawn::kept_mass, kept);
}

void check_draws(Checker& c) {
  const int64_t V = c.size.vocab;
  for (const int64_t shards : {1, 2})
    for (const bool has_filters : {false, true}) check_draws_of(V, shards, has_filters, c);
  check_draws_of(5001, 1, false, c);
}

// ---- experts

void check_router(Checker& c) {
  const int64_t T = c.size.tokens;
  const k::ExpertKernels& expert = c.backend.expert;
  for (const k::RouterShape& shape :
       {k::RouterShape{12, 3, 1, 1, false, true}, k::RouterShape{12, 3, 4, 2, true, true, 2.5f}, k::RouterShape{12, 2}}) {
    const at::Tensor logits = c.random_float({T, 12}), bias = shape.sigmoid ? c.random_float({12}, 0.1) : at::Tensor();
    const at::Tensor d = c.random_float({T, shape.experts_per_token}), load = c.random_float({12}).abs();
    const k::Routed got = expert.route(logits, bias, shape, {});
    const at::Tensor in = leaf(logits), scores = naive::scores(in, shape), chosen = got.experts_Tk.to(at::kCPU);
    c.expect("expert.route", "the scores", got.scores_TE, scores);
    at::Tensor choice = bias.defined() ? scores.detach() + wide(bias) : scores.detach();
    if (shape.num_groups > 1) {
      const at::Tensor grouped = choice.view({T, shape.num_groups, -1});
      const at::Tensor worth = std::get<0>(grouped.topk(2, 2)).sum(2), best = std::get<1>(worth.topk(shape.top_groups, 1));
      const at::Tensor kept = at::zeros_like(worth, at::kBool).scatter_(1, best, true).unsqueeze(2);
      choice = grouped.masked_fill(kept.logical_not(), -INFINITY).view({T, 12});
    }
    c.expect_equal("expert.route", "the choice", got.experts_Tk, std::get<1>(choice.topk(shape.experts_per_token, 1)));
    const at::Tensor weights = naive::chosen_weights(scores, chosen, shape);
    c.expect("expert.route", "the weights", got.weights_Tk, weights);
    const k::RouterLossTerms loss{0.3f, 0.7f, load, {}};
    const at::Tensor z = in.logsumexp(1).square().sum(), shares = shape.sigmoid ? scores / scores.sum(1, true) : scores;
    const at::Tensor balance = (shares * wide(load)).sum();
    ((weights * wide(d)).sum() + 0.3f * z + 0.7f * balance).backward();
    k::RouterLossSums sums{1, 2};
    c.expect("expert.route_backward", "the gradient", expert.route_backward({d, got.scores_TE, got.experts_Tk, logits}, shape, loss, sums),
             in.grad(), 2);
    c.expect("expert.route_backward", "the sums", at::tensor({sums.z - 1, sums.balance - 2}), at::stack({z, balance}), 2);
  }
}

void check_dispatch(Checker& c) {
  const int64_t T = c.size.tokens, F = c.size.inner;
  const k::ExpertKernels& expert = c.backend.expert;
  const at::Tensor experts = c.random_ids(T * 3, 7).view({T, 3});
  const k::Sorted sorted = expert.sort(experts, 8);
  const at::Tensor flat = experts.to(at::kCPU).flatten(), choice = std::get<1>(at::sort(flat, /*stable=*/true, 0, false));
  c.expect_equal("expert.sort", "the order", sorted.choice_S, choice);
  c.expect_equal("expert.sort", "the tokens", sorted.token_S, choice.div(3, "floor"));
  c.expect_equal("expert.sort", "the rows", sorted.row_N, std::get<1>(at::sort(choice)));
  const at::Tensor counts = at::bincount(flat, {}, 8).cumsum(0);
  c.expect_equal("expert.sort", "the numbers of rows", at::tensor(sorted.rows.offsets, at::kLong),
                 at::cat({at::zeros({1}, at::kLong), counts}));
  const at::Tensor rows = c.random({T * 3, F});
  c.expect("expert.combine", "the sums", expert.combine(rows, sorted.row_N, 3),
           wide(rows).index_select(0, sorted.row_N.to(at::kCPU)).view({T, 3, F}).sum(1));
}

// ---- updates

void check_update(Checker& c) {
  const int64_t n = c.size.updated;
  const at::Tensor grad = c.random_float({n}), m0 = c.random_float({n}), v0 = c.random_float({n}).square(), p0 = c.random_float({n});
  const bool rounds = c.dtype != at::kFloat;
  const k::AdamTensors t{p0.clone(), rounds ? c.empty({n}, c.dtype) : at::Tensor(), grad, m0.clone(), v0.clone()};
  const k::AdamStep step{0.5, 0.01, 0.9, 0.95, 1e-6, 0.1, 7};
  c.backend.update.adamw(t, step);
  const at::Tensor g = wide(grad) * 0.5, m = wide(m0) * 0.9 + g * 0.1, v = wide(v0) * 0.95 + g.square() * 0.05;
  const at::Tensor p = wide(p0) * (1 - 0.01 * 0.1) - 0.01 * (m / (1 - std::pow(0.9, 7))) / ((v / (1 - std::pow(0.95, 7))).sqrt() + 1e-6);
  c.expect("update.adamw", "the first moment", t.m, m);
  c.expect("update.adamw", "the second moment", t.v, v);
  c.expect("update.adamw", "the parameters", t.master, p);
  if (rounds) c.expect("update.adamw", "the rounded parameters", t.rounded, p);
  at::Tensor sums = at::ones({2}, at::TensorOptions(at::kDouble).device(c.device));
  c.backend.update.add_squares(grad, 4, sums, 1);
  c.expect("update.add_squares", "the sum", sums, at::stack({at::ones({}, at::kDouble), wide(grad).square().sum() / 4 + 1}));
}

struct KernelGroup {
  const char* kernels;  // named where one of them throws
  void (*run)(Checker&);
};
constexpr KernelGroup kGroups[] = {{"product", check_products},
                             {"product.grouped", check_grouped_products},
                             {"row.embed", check_embedding},
                             {"row.add_rms_norm", check_norm},
                             {"row.rope", check_heads},
                             {"row.swiglu", check_activation},
                             {"attention.packed", for_all_heads<check_packed_attention>},
                             {"attention.paged", for_all_heads<check_paged_attention>},
                             {"logit", check_logits},
                             {"logit.draw", check_draws},
                             {"expert.route", check_router},
                             {"expert.sort", check_dispatch},
                             {"update", check_update}};

}  // namespace

void check_kernels(const model::kernel::Backend& backend, at::Device device, Extent extent,
                   const std::function<void(const KernelReport&)>& ended) {
  for (const KernelGroup& group : kGroups) {
    KernelReport report;
    for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const uint64_t seed : {1, 2}) {
        if (seed > 1 && extent == Extent::kSizesOfModels) continue;  // what a kernel kept has shown at odd sizes
        Checker checker(backend, device, {dtype, extent, seed}, report);
        try {
          group.run(checker);
        } catch (const std::exception& e) {
          checker.fail(group.kernels, "throws: " + said_by(e));
        }
      }
    ended(report);
  }
}

}  // namespace tandem::doctor
