// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/model/kernel/gemm.h"

namespace tandem::model::kernel {
namespace {

constexpr int64_t kQueryRows = 128;  // query rows of one block
constexpr int64_t kLaneTokens = 16;

template <class T>
T* pointer(const at::Tensor& t) { return static_cast<T*>(t.data_ptr()); }

// Runs unit(i) for i < n on all threads, next free thread first: units differ a lot in length.
template <class Unit>
void dynamic_for(int64_t n, const Unit& unit) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), n);
  if (threads <= 1) {
    for (int64_t i = 0; i < n; ++i) unit(i);
    return;
  }
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1)) < n;) unit(i);
  });
}

struct Span {
  int64_t begin, length;  // of a sequence in the packed tokens
  int64_t kv_head;
};

std::vector<Span> spans_of(const Offsets& offsets, const AttentionShape& shape) {
  std::vector<Span> spans;
  for (size_t s = 0; s + 1 < offsets.size(); ++s)
    for (int64_t h = 0; h < shape.num_kv_heads; ++h)
      if (offsets[s + 1] > offsets[s]) spans.push_back({offsets[s], offsets[s + 1] - offsets[s], h});
  // Longest first, so that no thread is left with a long one at the end.
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.length > b.length; });
  return spans;
}

// The pieces of one sequence and kv head inside a qkv-shaped buffer.
template <class T>
struct Heads {
  T *q, *k, *v;
  int64_t stride;
  Heads(const at::Tensor& qkv, const Span& span, const AttentionShape& shape) : stride(shape.width()) {
    T* row = pointer<T>(qkv) + span.begin * stride;
    q = row + span.kv_head * shape.group() * shape.head_dim;
    k = row + shape.q_width() + span.kv_head * shape.head_dim;
    v = k + shape.num_kv_heads * shape.head_dim;
  }
};

template <class T>
void forward_span(const at::Tensor& qkv, const Span& span, const AttentionShape& shape, const at::Tensor& o, float* lse) {
  const RowTable<T>& row = row_table<T>();
  const int64_t D = shape.head_dim, N = shape.num_heads;
  const Heads<T> in(qkv, span, shape);
  const int64_t block = std::min(kQueryRows, span.length);
  std::vector<float> scores(static_cast<size_t>(block * span.length)), mixed(static_cast<size_t>(block * D));
  std::vector<T> p(scores.size());
  for (int64_t begin = 0; begin < span.length; begin += block) {
    const int64_t n = std::min(block, span.length - begin), keys = begin + n;
    for (int64_t g = 0; g < shape.group(); ++g) {
      product({false, true, n, keys, D, in.stride, in.stride, keys}, in.q + begin * in.stride + g * D, in.k, scores.data());
      const int64_t head = span.kv_head * shape.group() + g;
      for (int64_t i = 0; i < n; ++i) {
        const float l = row.softmax_row(scores.data() + i * keys, shape.scale(), begin + i + 1, keys, p.data() + i * keys);
        if (lse) lse[(span.begin + begin + i) * N + head] = l;
      }
      product({false, false, n, D, keys, keys, in.stride, D}, p.data(), in.v, mixed.data());
      T* out = pointer<T>(o) + (span.begin + begin) * shape.q_width() + head * D;
      for (int64_t i = 0; i < n; ++i) row.from_float(mixed.data() + i * D, D, out + i * shape.q_width());
    }
  }
}

template <class T>
void backward_span(const at::Tensor& d_o, const at::Tensor& o, const at::Tensor& qkv, const float* lse, const Span& span,
                   const AttentionShape& shape, const at::Tensor& d_qkv) {
  const RowTable<T>& row = row_table<T>();
  const int64_t D = shape.head_dim, N = shape.num_heads, Q = shape.q_width();
  const Heads<T> in(qkv, span, shape), out(d_qkv, span, shape);
  const int64_t block = std::min(kQueryRows, span.length);
  const size_t cells = static_cast<size_t>(block * span.length);
  std::vector<float> scores(cells), d_p(cells), d_q(static_cast<size_t>(block * D));
  std::vector<float> d_k(static_cast<size_t>(span.length * D)), d_v(d_k.size());
  std::vector<T> p(cells), d_s(cells);
  for (int64_t begin = 0; begin < span.length; begin += block) {
    const int64_t n = std::min(block, span.length - begin), keys = begin + n;
    for (int64_t g = 0; g < shape.group(); ++g) {
      const int64_t head = span.kv_head * shape.group() + g;
      const T* q = in.q + begin * in.stride + g * D;
      const T* d_out = pointer<T>(d_o) + (span.begin + begin) * Q + head * D;
      const T* o_row = pointer<T>(o) + (span.begin + begin) * Q + head * D;
      product({false, true, n, keys, D, in.stride, in.stride, keys}, q, in.k, scores.data());
      product({false, true, n, keys, D, Q, in.stride, keys}, d_out, in.v, d_p.data());
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * keys;
        const float l = lse ? lse[(span.begin + begin + i) * N + head]
                            : row.softmax_row(scores.data() + at, shape.scale(), begin + i + 1, keys, p.data() + at);
        float lse_delta[2] = {l, row.dot(d_out + i * Q, o_row + i * Q, D)};
        int64_t n_valid[2] = {keys, begin + i + 1};
        row.softmax_backward_row(scores.data() + at, d_p.data() + at, shape.scale(), lse_delta, n_valid, p.data() + at, d_s.data() + at);
      }
      product({true, false, keys, D, n, keys, Q, D, 1.0f, 1.0f}, p.data(), d_out, d_v.data());
      product({true, false, keys, D, n, keys, in.stride, D, 1.0f, 1.0f}, d_s.data(), q, d_k.data());
      product({false, false, n, D, keys, keys, in.stride, D}, d_s.data(), in.k, d_q.data());
      for (int64_t i = 0; i < n; ++i) row.from_float(d_q.data() + i * D, D, out.q + (begin + i) * out.stride + g * D);
    }
  }
  for (int64_t i = 0; i < span.length; ++i) {
    row.from_float(d_k.data() + i * D, D, out.k + i * out.stride);
    row.from_float(d_v.data() + i * D, D, out.v + i * out.stride);
  }
}

bool computes_in_half(const at::Tensor& t) { return t.scalar_type() == at::kBFloat16 && half_product_available(); }

template <class T>
at::Tensor by_row(const at::Tensor& qkv, const Offsets& offsets, const AttentionShape& shape) {
  std::vector<std::vector<int32_t>> tables;
  PagedTokens tokens;
  int32_t num_blocks = 0;
  tables.reserve(offsets.size());
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t length = offsets[s + 1] - offsets[s];
    std::vector<int32_t>& table = tables.emplace_back();
    for (int64_t t = 0; t < length; t += kLaneTokens) table.push_back(num_blocks++);
    for (int64_t t = 0; t < length; ++t) {
      tokens.block_tables.push_back(table.data());
      tokens.positions.push_back(t);
    }
  }
  const std::vector<int64_t> cache_shape = {num_blocks, shape.num_kv_heads, kLaneTokens, shape.head_dim};
  at::Tensor keys = at::empty(cache_shape, qkv.options()), values = at::empty(cache_shape, qkv.options());
  const PagedCache cache{keys.data_ptr(), values.data_ptr(), shape.num_kv_heads, shape.head_dim, kLaneTokens, shape.group()};
  return paged_attention(qkv, tokens, shape, cache);
}

template <class T>
void paged(const at::Tensor& qkv, const PagedTokens& tokens, const AttentionShape& shape, const PagedCache& cache, at::Tensor& o) {
  const RowTable<T>& row = row_table<T>();
  const int64_t T_tokens = qkv.size(0), D = shape.head_dim, W = shape.width();
  const T* in = pointer<T>(qkv);
  at::parallel_for(0, T_tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = tokens.positions[static_cast<size_t>(t)];
      const int32_t block = tokens.block_tables[static_cast<size_t>(t)][position / cache.block_tokens];
      const T* k = in + t * W + shape.q_width();
      row.write_cache(cache, block, position % cache.block_tokens, k, k + shape.num_kv_heads * D);
    }
  });
  dynamic_for(T_tokens, [&](int64_t t) {
    thread_local std::vector<float> scratch;
    const int64_t context = tokens.positions[static_cast<size_t>(t)] + 1;
    scratch.resize(static_cast<size_t>((context + kLaneTokens + D) * shape.group()));
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      const PagedQuery query{tokens.block_tables[static_cast<size_t>(t)], context, h};
      const int64_t head = h * shape.group();
      row.paged_attention(cache, query, in + t * W + head * D, shape.scale(), scratch.data(), pointer<T>(o) + t * shape.q_width() + head * D);
    }
  });
}

}  // namespace

float AttentionShape::scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

at::Tensor packed_attention(const at::Tensor& qkv, const Offsets& offsets, const AttentionShape& shape, at::Tensor* lse) {
  if (qkv.scalar_type() == at::kBFloat16 && !computes_in_half(qkv))
    return packed_attention(qkv.to(at::kFloat), offsets, shape, lse).to(at::kBFloat16);
  at::Tensor o = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  float* lse_out = nullptr;
  if (lse) {
    *lse = at::empty({qkv.size(0), shape.num_heads}, qkv.options().dtype(at::kFloat));
    lse_out = lse->data_ptr<float>();
  }
  const std::vector<Span> spans = spans_of(offsets, shape);
  dynamic_for(static_cast<int64_t>(spans.size()), [&](int64_t i) {
    const Span& span = spans[static_cast<size_t>(i)];
    if (qkv.scalar_type() == at::kFloat) forward_span<float>(qkv, span, shape, o, lse_out);
    else forward_span<Half>(qkv, span, shape, o, lse_out);
  });
  return o;
}

at::Tensor packed_attention_by_row(const at::Tensor& qkv, const Offsets& offsets, const AttentionShape& shape) {
  return qkv.scalar_type() == at::kFloat ? by_row<float>(qkv, offsets, shape) : by_row<Half>(qkv, offsets, shape);
}

at::Tensor packed_attention_backward(const at::Tensor& d_o, const at::Tensor& o, const at::Tensor& qkv, const at::Tensor& lse,
                                     const Offsets& offsets, const AttentionShape& shape) {
  if (qkv.scalar_type() == at::kBFloat16 && !computes_in_half(qkv))
    return packed_attention_backward(d_o.to(at::kFloat), o.to(at::kFloat), qkv.to(at::kFloat), lse, offsets, shape).to(at::kBFloat16);
  at::Tensor d_qkv = at::empty_like(qkv);
  const float* lse_in = lse.defined() ? lse.data_ptr<float>() : nullptr;
  const std::vector<Span> spans = spans_of(offsets, shape);
  dynamic_for(static_cast<int64_t>(spans.size()), [&](int64_t i) {
    const Span& span = spans[static_cast<size_t>(i)];
    if (qkv.scalar_type() == at::kFloat) backward_span<float>(d_o, o, qkv, lse_in, span, shape, d_qkv);
    else backward_span<Half>(d_o, o, qkv, lse_in, span, shape, d_qkv);
  });
  return d_qkv;
}

at::Tensor paged_attention(const at::Tensor& qkv, const PagedTokens& tokens, const AttentionShape& shape, const PagedCache& cache) {
  TANDEM_CHECK(static_cast<int64_t>(tokens.positions.size()) == qkv.size(0) && cache.block_tokens % kLaneTokens == 0, "paged attention");
  at::Tensor o = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  if (qkv.scalar_type() == at::kFloat) paged<float>(qkv, tokens, shape, cache, o);
  else paged<Half>(qkv, tokens, shape, cache, o);
  return o;
}

}  // namespace tandem::model::kernel
