// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/model/kernel/gemm.h"

namespace tandem::model::kernel {
namespace {

constexpr int64_t kQueryRows = 128;  // query rows of one block
constexpr int64_t kLaneTokens = 16;

template <class T>
T* pointer(const at::Tensor& t) { return static_cast<T*>(t.data_ptr()); }

// Runs unit(i, local) for i < n on all threads, next free thread first: units differ a lot in length. Each thread has a
// Local of its own, for buffers that outlive a unit.
template <class Local, class Unit>
void dynamic_for(int64_t n, const Unit& unit) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t, int64_t) {
    Local local;
    for (int64_t i; (i = next.fetch_add(1)) < n;) unit(i, local);
  };
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), n);
  if (threads > 1) at::parallel_for(0, threads, 1, work);
  else work(0, 1);
}

// A run of queries and what it sees before itself.
struct Span {
  int64_t begin, length;  // in the packed tokens
  int64_t stem_begin, stem;
  int64_t kv_head;
  int64_t keys() const { return stem + length; }
};

// A tree's spans for one kv head: the branches, then the stem.
std::vector<Span> spans_of(const Tree& tree, int64_t kv_head) {
  std::vector<Span> spans;
  int64_t begin = tree.begin + tree.stem;
  for (int64_t length : tree.branches) {
    spans.push_back({begin, length, tree.begin, tree.stem, kv_head});
    begin += length;
  }
  spans.push_back({tree.begin, tree.stem, 0, 0, kv_head});
  return spans;
}

// One list of spans for each tree and kv head; the longest first, so that no thread is left with a long one at the end.
std::vector<std::vector<Span>> units_of(const Trees& trees, const AttentionShape& shape) {
  std::vector<std::vector<Span>> units;
  for (const Tree& tree : trees)
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) units.push_back(spans_of(tree, h));
  const auto cost = [](const std::vector<Span>& unit) {
    int64_t cells = 0;
    for (const Span& span : unit) cells += span.length * span.keys();
    return cells;
  };
  std::stable_sort(units.begin(), units.end(), [&](const auto& a, const auto& b) { return cost(a) > cost(b); });
  return units;
}

template <class T>
struct Scratch {
  std::vector<float> scores, d_p, mixed, d_k, d_v;
  std::vector<T> q, d_o, p, d_s, gathered;
};

template <class V>
auto* sized(V& buffer, int64_t n) {
  if (static_cast<int64_t>(buffer.size()) < n) buffer.resize(static_cast<size_t>(n));
  return buffer.data();
}

// Keys and values of one span, row by row. With a stem, its rows and the span's own are brought side by side first, so that
// one product covers both.
template <class T>
struct Keys {
  const T *k, *v;
  int64_t stride;

  Keys(const at::Tensor& qkv, const Span& span, const AttentionShape& shape, std::vector<T>& gathered) : stride(shape.width()) {
    const int64_t D = shape.head_dim, to_k = shape.q_width() + span.kv_head * D, to_v = to_k + shape.num_kv_heads * D;
    const T* all = pointer<T>(qkv);
    k = all + span.begin * stride + to_k;
    v = all + span.begin * stride + to_v;
    if (span.stem == 0) return;
    T *keys = sized(gathered, 2 * span.keys() * D), *values = keys + span.keys() * D;
    for (int64_t i = 0; i < span.keys(); ++i) {
      const T* from = all + (i < span.stem ? span.stem_begin + i : span.begin + i - span.stem) * stride;
      std::copy_n(from + to_k, D, keys + i * D);
      std::copy_n(from + to_v, D, values + i * D);
    }
    k = keys, v = values, stride = D;
  }
};

// Some query rows of a span, the heads that share its keys one after the other: row g*n + i is head g of query i. They go
// through the products together.
struct Block {
  const Span& span;
  const AttentionShape& shape;
  int64_t begin, n;  // of the span's queries

  int64_t keys() const { return span.stem + begin + n; }
  int64_t rows() const { return n * shape.group(); }
  int64_t valid(int64_t row) const { return keys() - n + row % n + 1; }
  int64_t token(int64_t row) const { return span.begin + begin + row % n; }
  int64_t head(int64_t row) const { return span.kv_head * shape.group() + row / n; }

  // Between the block's rows and those of a packed tensor whose tokens are `width` wide and start with the query heads.
  template <class T>
  const T* gather(const at::Tensor& from, int64_t width, std::vector<T>& buffer) const {
    T* to = sized(buffer, rows() * shape.head_dim);
    for (int64_t r = 0; r < rows(); ++r)
      std::copy_n(pointer<T>(from) + token(r) * width + head(r) * shape.head_dim, shape.head_dim, to + r * shape.head_dim);
    return to;
  }
  template <class T>
  void scatter(const float* from, const at::Tensor& to, int64_t width) const {
    for (int64_t r = 0; r < rows(); ++r)
      row_table<T>().from_float(from + r * shape.head_dim, shape.head_dim, pointer<T>(to) + token(r) * width + head(r) * shape.head_dim);
  }
};

// What the forward pass reads and writes, of all tokens; lse may be null.
struct Forward {
  const at::Tensor& qkv;
  const AttentionShape& shape;
  const at::Tensor& o;
  float* lse;
};

template <class T>
void forward_span(const Forward& f, const Span& span, Scratch<T>& scratch) {
  const AttentionShape& shape = f.shape;
  const int64_t D = shape.head_dim;
  const Keys<T> in(f.qkv, span, shape, scratch.gathered);
  for (int64_t begin = 0; begin < span.length; begin += kQueryRows) {
    const Block block{span, shape, begin, std::min(kQueryRows, span.length - begin)};
    const int64_t R = block.rows(), keys = block.keys();
    float *scores = sized(scratch.scores, R * keys), *mixed = sized(scratch.mixed, R * D);
    T* p = sized(scratch.p, R * keys);
    product({false, true, R, keys, D, D, in.stride, keys}, block.gather(f.qkv, shape.width(), scratch.q), in.k, scores);
    for (int64_t r = 0; r < R; ++r) {
      const float l = row_table<T>().softmax_row(scores + r * keys, shape.scale(), block.valid(r), keys, p + r * keys);
      if (f.lse) f.lse[block.token(r) * shape.num_heads + block.head(r)] = l;
    }
    product({false, false, R, D, keys, keys, in.stride, D}, p, in.v, mixed);
    block.scatter<T>(mixed, f.o, shape.q_width());
  }
}

// What the backward pass reads and writes, of all tokens.
struct Backward {
  const at::Tensor &d_o, &o, &qkv;
  const float* lse;
  const AttentionShape& shape;
  const at::Tensor& d_qkv;
};

// Queries' gradients are written; those of the keys() rows of keys and values are added to d_k and d_v of the scratch.
template <class T>
void backward_span(const Backward& b, const Span& span, Scratch<T>& scratch) {
  const AttentionShape& shape = b.shape;
  const RowTable<T>& row = row_table<T>();
  const int64_t D = shape.head_dim, Q = shape.q_width();
  const Keys<T> in(b.qkv, span, shape, scratch.gathered);
  for (int64_t begin = 0; begin < span.length; begin += kQueryRows) {
    const Block block{span, shape, begin, std::min(kQueryRows, span.length - begin)};
    const int64_t R = block.rows(), keys = block.keys();
    float *scores = sized(scratch.scores, R * keys), *d_p = sized(scratch.d_p, R * keys), *d_q = sized(scratch.mixed, R * D);
    T *p = sized(scratch.p, R * keys), *d_s = sized(scratch.d_s, R * keys);
    const T *q = block.gather(b.qkv, shape.width(), scratch.q), *d_o = block.gather(b.d_o, Q, scratch.d_o);
    product({false, true, R, keys, D, D, in.stride, keys}, q, in.k, scores);
    product({false, true, R, keys, D, D, in.stride, keys}, d_o, in.v, d_p);
    for (int64_t r = 0; r < R; ++r) {
      const int64_t at = r * keys, valid = block.valid(r);
      const float l = b.lse ? b.lse[block.token(r) * shape.num_heads + block.head(r)]
                            : row.softmax_row(scores + at, shape.scale(), valid, keys, p + at);
      float lse_delta[2] = {l, row.dot(d_o + r * D, pointer<T>(b.o) + block.token(r) * Q + block.head(r) * D, D)};
      int64_t n_valid[2] = {keys, valid};
      row.softmax_backward_row(scores + at, d_p + at, shape.scale(), lse_delta, n_valid, p + at, d_s + at);
    }
    product({true, false, keys, D, R, keys, D, D, 1.0f, 1.0f}, p, d_o, scratch.d_v.data());
    product({true, false, keys, D, R, keys, D, D, 1.0f, 1.0f}, d_s, q, scratch.d_k.data());
    product({false, false, R, D, keys, keys, in.stride, D}, d_s, in.k, d_q);
    block.scatter<T>(d_q, b.d_qkv, shape.width());
  }
}

// Branches first: what they owe to the stem's keys and values adds up before the stem's own pass ends it.
template <class T>
void backward_unit(const Backward& b, const std::vector<Span>& unit, Scratch<T>& scratch) {
  const AttentionShape& shape = b.shape;
  const RowTable<T>& row = row_table<T>();
  const int64_t D = shape.head_dim, W = shape.width();
  int64_t longest = 0;
  for (const Span& span : unit) longest = std::max(longest, span.keys());
  for (std::vector<float>* d : {&scratch.d_k, &scratch.d_v}) std::fill_n(sized(*d, longest * D), longest * D, 0.0f);
  for (const Span& span : unit) {
    if (span.stem > 0)  // what the branch before left after the stem
      for (float* d : {scratch.d_k.data(), scratch.d_v.data()}) std::fill(d + span.stem * D, d + span.keys() * D, 0.0f);
    backward_span<T>(b, span, scratch);
    T* out = pointer<T>(b.d_qkv) + span.begin * W + shape.q_width() + span.kv_head * D;
    for (int64_t i = 0; i < span.length; ++i) {
      row.from_float(scratch.d_k.data() + (span.stem + i) * D, D, out + i * W);
      row.from_float(scratch.d_v.data() + (span.stem + i) * D, D, out + i * W + shape.num_kv_heads * D);
    }
  }
}

template <class T>
void backward_units(const Backward& b, const Trees& trees) {
  const std::vector<std::vector<Span>> units = units_of(trees, b.shape);
  dynamic_for<Scratch<T>>(static_cast<int64_t>(units.size()), [&](int64_t i, Scratch<T>& scratch) {
    backward_unit<T>(b, units[static_cast<size_t>(i)], scratch);
  });
}

bool computes_in_half(const at::Tensor& t) { return t.scalar_type() == at::kBFloat16 && half_product_available(); }

template <class T>
void write_token(const PagedCache& cache, const int32_t* table, int64_t position, const T* qkv_row, const AttentionShape& shape) {
  const T* k = qkv_row + shape.q_width();
  row_table<T>().write_cache(cache, table[position / cache.block_tokens], position % cache.block_tokens, k, k + shape.num_kv_heads * shape.head_dim);
}

// One token at a time against the cache; `chosen` are rows of qkv.
template <class T>
void attend_rows(const Forward& f, const PagedTokens& tokens, const std::vector<int64_t>& chosen, const PagedCache& cache) {
  const RowTable<T>& row = row_table<T>();
  const AttentionShape& shape = f.shape;
  const int64_t D = shape.head_dim;
  const int64_t heads = shape.num_kv_heads;
  dynamic_for<std::vector<float>>(std::ssize(chosen) * heads, [&](int64_t i, std::vector<float>& scratch) {
    const int64_t t = chosen[static_cast<size_t>(i / heads)], context = tokens.positions[static_cast<size_t>(t)] + 1;
    float* buffer = sized(scratch, (context + kLaneTokens + D) * shape.group());
    const PagedQuery query{tokens.block_tables[static_cast<size_t>(t)], context, i % heads};
    const int64_t head = query.kv_head * shape.group();
    row.paged_attention(cache, query, pointer<T>(f.qkv) + t * shape.width() + head * D, shape.scale(), buffer,
                        pointer<T>(f.o) + t * shape.q_width() + head * D);
  });
}

// As the engine would have it: each branch in blocks of its own, with the stem's keys and values before its own.
template <class T>
void by_row(const Forward& f, const Trees& trees) {
  const at::Tensor& qkv = f.qkv;
  const AttentionShape& shape = f.shape;
  std::vector<Span> spans;
  int64_t num_blocks = 0;
  for (const Tree& tree : trees)
    for (const Span& span : spans_of(tree, 0)) {
      spans.push_back(span);
      num_blocks += (span.keys() + kLaneTokens - 1) / kLaneTokens;
    }
  const std::vector<int64_t> cache_shape = {num_blocks, shape.num_kv_heads, kLaneTokens, shape.head_dim};
  at::Tensor keys = at::empty(cache_shape, qkv.options()), values = at::empty(cache_shape, qkv.options());
  const PagedCache cache{keys.data_ptr(), values.data_ptr(), shape.num_kv_heads, shape.head_dim, kLaneTokens, shape.group()};
  PagedTokens tokens;
  tokens.block_tables.resize(static_cast<size_t>(qkv.size(0)));
  tokens.positions.resize(tokens.block_tables.size());
  std::vector<int32_t> blocks(static_cast<size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  const int32_t* table = blocks.data();
  std::vector<int64_t> all;
  for (const Span& span : spans) {
    for (int64_t i = 0; i < span.keys(); ++i) {
      const int64_t t = i < span.stem ? span.stem_begin + i : span.begin + i - span.stem;
      write_token(cache, table, i, pointer<T>(qkv) + t * shape.width(), shape);
      if (i < span.stem) continue;
      tokens.block_tables[static_cast<size_t>(t)] = table;
      tokens.positions[static_cast<size_t>(t)] = i;
      all.push_back(t);
    }
    table += (span.keys() + kLaneTokens - 1) / kLaneTokens;
  }
  attend_rows<T>(f, tokens, all, cache);
}

template <class T>
void forward_units(const Forward& f, const Trees& trees) {
  std::vector<Span> spans;
  for (const std::vector<Span>& unit : units_of(trees, f.shape)) spans.insert(spans.end(), unit.begin(), unit.end());
  dynamic_for<Scratch<T>>(static_cast<int64_t>(spans.size()), [&](int64_t i, Scratch<T>& scratch) {
    forward_span<T>(f, spans[static_cast<size_t>(i)], scratch);
  });
}

template <class T>
void paged(const Forward& f, const PagedTokens& tokens, const PagedCache& cache) {
  const int64_t T_tokens = f.qkv.size(0);
  at::parallel_for(0, T_tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      write_token(cache, tokens.block_tables[static_cast<size_t>(t)], tokens.positions[static_cast<size_t>(t)], pointer<T>(f.qkv) + t * f.shape.width(), f.shape);
  });
  const bool packed = sizeof(T) == sizeof(float) || half_product_available();
  if (packed) forward_units<T>(f, tokens.whole);
  std::vector<int64_t> left;
  size_t next = 0;
  for (int64_t t = 0; t < T_tokens;) {
    if (packed && next < tokens.whole.size() && tokens.whole[next].begin == t) t += tokens.whole[next++].stem;
    else left.push_back(t++);
  }
  attend_rows<T>(f, tokens, left, cache);
}

}  // namespace

Trees stems(std::span<const int64_t> lengths) {
  Trees trees;
  int64_t begin = 0;
  for (int64_t length : lengths) {
    trees.push_back({begin, length, {}});
    begin += length;
  }
  return trees;
}

float AttentionShape::scale() const { return softmax_scale > 0 ? softmax_scale : 1.0f / std::sqrt(static_cast<float>(head_dim)); }

at::Tensor packed_attention(const at::Tensor& qkv, const Trees& trees, const AttentionShape& shape, at::Tensor* lse) {
  if (qkv.scalar_type() == at::kBFloat16 && !computes_in_half(qkv))
    return packed_attention(qkv.to(at::kFloat), trees, shape, lse).to(at::kBFloat16);
  at::Tensor o = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  float* lse_out = nullptr;
  if (lse) {
    *lse = at::empty({qkv.size(0), shape.num_heads}, qkv.options().dtype(at::kFloat));
    lse_out = lse->data_ptr<float>();
  }
  const Forward f{qkv, shape, o, lse_out};
  if (qkv.scalar_type() == at::kFloat) forward_units<float>(f, trees);
  else forward_units<Half>(f, trees);
  return o;
}

at::Tensor packed_attention_by_row(const at::Tensor& qkv, const Trees& trees, const AttentionShape& shape) {
  const at::Tensor o = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  const Forward f{qkv, shape, o, nullptr};
  if (qkv.scalar_type() == at::kFloat) by_row<float>(f, trees);
  else by_row<Half>(f, trees);
  return o;
}

at::Tensor packed_attention_backward(const at::Tensor& d_o, const at::Tensor& o, const at::Tensor& qkv, const at::Tensor& lse,
                                     const Trees& trees, const AttentionShape& shape) {
  if (qkv.scalar_type() == at::kBFloat16 && !computes_in_half(qkv))
    return packed_attention_backward(d_o.to(at::kFloat), o.to(at::kFloat), qkv.to(at::kFloat), lse, trees, shape).to(at::kBFloat16);
  at::Tensor d_qkv = at::empty_like(qkv);
  const Backward b{d_o, o, qkv, lse.defined() ? lse.data_ptr<float>() : nullptr, shape, d_qkv};
  if (qkv.scalar_type() == at::kFloat) backward_units<float>(b, trees);
  else backward_units<Half>(b, trees);
  return d_qkv;
}

at::Tensor paged_attention(const at::Tensor& qkv, const PagedTokens& tokens, const AttentionShape& shape, const PagedCache& cache) {
  TANDEM_CHECK(static_cast<int64_t>(tokens.positions.size()) == qkv.size(0) && cache.block_tokens % kLaneTokens == 0, "paged attention");
  at::Tensor o = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  const Forward f{qkv, shape, o, nullptr};
  if (qkv.scalar_type() == at::kFloat) paged<float>(f, tokens, cache);
  else paged<Half>(f, tokens, cache);
  return o;
}

}  // namespace tandem::model::kernel
