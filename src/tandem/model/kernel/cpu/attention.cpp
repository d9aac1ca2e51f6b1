// SPDX-License-Identifier: Apache-2.0
// Causal attention in blocks of queries, and of single tokens against a cache.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/device/process.h"
#include "tandem/model/kernel/cpu/cpu.h"
#include "tandem/model/kernel/cpu/product/brgemm.h"
#include "tandem/model/kernel/cpu/product/gemm.h"
#include "tandem/model/kernel/cpu/product/score_blocks.h"
#include "tandem/model/kernel/cpu/row_loop.h"

namespace tandem::model::kernel::cpu {
namespace {

constexpr int64_t kQueryRows = 128;  // query rows of one block
constexpr int64_t kLaneTokens = 16;  // keys that lie side by side in a cache; its blocks hold multiples of them

// Runs unit(i, local) for i < n on all threads, next free thread first: units differ a lot in length. Each thread has a
// Local of its own, for buffers that outlive a unit.
template <class Local, class Unit>
void dynamic_for(int64_t n, const Unit& unit) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t, int64_t) {
    const device::ThreadLimit alone(n > 1 ? 1 : 0);  // a product inside must not be cut for threads that are busy here
    Local local;
    for (int64_t i; (i = next.fetch_add(1)) < n;) unit(i, local);
  };
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), n);
  if (threads > 1) at::parallel_for(0, threads, 1, work);
  else work(0, 1);
}

// Queries that a span has here: its own `begin` to `end`, of which the first is row `row` of the query tensor.
struct Queries {
  int64_t begin, end, row;
};

// A run of tokens, what it sees before itself, and which of its queries are here.
struct Span {
  int64_t begin, length;  // in the packed tokens
  int64_t stem_begin, stem;
  int64_t kv_head;
  std::vector<Queries> queries;

  int64_t keys() const { return stem + length; }
  int64_t token(int64_t key) const { return key < stem ? stem_begin + key : begin + key - stem; }
  int64_t seen() const { return queries.empty() ? 0 : stem + queries.back().end; }  // keys that its queries need
};

// Finds the rows of the query tensor that belong to a run of tokens.
class OwnTokens {
 public:
  explicit OwnTokens(const std::vector<TokenRun>& runs) : runs_(runs) {
    int64_t row = 0;
    for (const TokenRun& run : runs) {
      first_row_.push_back(row);
      row += run.length;
    }
  }
  std::vector<Queries> of(int64_t begin, int64_t length) const {
    const auto after = [](int64_t token, const TokenRun& run) { return token < run.begin + run.length; };
    std::vector<Queries> found;
    for (auto i = std::upper_bound(runs_.begin(), runs_.end(), begin, after) - runs_.begin(); i < std::ssize(runs_); ++i) {
      const TokenRun& run = runs_[static_cast<size_t>(i)];
      const int64_t first = std::max(run.begin, begin), end = std::min(run.begin + run.length, begin + length);
      if (first >= end) break;
      found.push_back({first - begin, end - begin, first_row_[static_cast<size_t>(i)] + first - run.begin});
    }
    return found;
  }

 private:
  const std::vector<TokenRun>& runs_;
  std::vector<int64_t> first_row_;
};

// A tree's spans for one kv head: the branches, then the stem.
std::vector<Span> spans_of(const Tree& tree, const OwnTokens& own, int64_t kv_head) {
  std::vector<Span> spans;
  int64_t begin = tree.begin + tree.stem;
  for (int64_t length : tree.branches) {
    spans.push_back({begin, length, tree.begin, tree.stem, kv_head, own.of(begin, length)});
    begin += length;
  }
  spans.push_back({tree.begin, tree.stem, 0, 0, kv_head, own.of(tree.begin, tree.stem)});
  return spans;
}

// One list of spans for each tree and kv head; the longest first, so that no thread is left with a long one at the end.
std::vector<std::vector<Span>> units_of(const Trees& trees, const std::vector<TokenRun>& runs, const AttentionShape& shape) {
  const OwnTokens own(runs);
  std::vector<std::vector<Span>> units;
  for (const Tree& tree : trees)
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) units.push_back(spans_of(tree, own, h));
  const auto cost = [](const std::vector<Span>& unit) {
    int64_t cells = 0;
    for (const Span& span : unit)
      for (const Queries& q : span.queries) cells += (q.end - q.begin) * (span.stem + q.end);
    return cells;
  };
  std::stable_sort(units.begin(), units.end(), [&](const auto& a, const auto& b) { return cost(a) > cost(b); });
  return units;
}

// A library's product has the same bits only where its operands are aligned the same, whichever thread owns them.
template <class T>
struct LineAligned {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAligned() = default;
  template <class U>
  LineAligned(const LineAligned<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAligned&) const { return true; }
};
template <class T>
using Buffer = std::vector<T, LineAligned<T>>;

template <class T>
struct Scratch {
  Buffer<float> scores, d_p, mixed, d_k, d_v;
  Buffer<T> q, d_o, p, d_s, gathered;
};

template <class V>
auto* sized(V& buffer, int64_t n) {
  if (static_cast<int64_t>(buffer.size()) < n) buffer.resize(static_cast<size_t>(n));
  return buffer.data();
}

// The rows of a tensor from one of its columns on; they may be parts of wider rows.
struct RowMemory {
  RowMemory(const at::Tensor& t, int64_t column = 0)  // NOLINT(google-explicit-constructor): a tensor of rows is one
      : first(static_cast<char*>(t.data_ptr()) + column * static_cast<int64_t>(t.element_size())), stride(t.stride(0)) {}
  char* first;
  int64_t stride;  // elements
};
template <class T>
class RowsOf {
 public:
  explicit RowsOf(const RowMemory& rows) : first_(reinterpret_cast<T*>(rows.first)), stride_(rows.stride) {}
  T* operator[](int64_t row) const { return first_ + row * stride_; }

 private:
  T* first_;
  int64_t stride_;
};

// Keys and values that the queries of one span need, row by row. With a stem, its rows and the span's own are brought side by
// side first, so that one product covers both.
template <class T>
struct Keys {
  const T *k, *v;
  int64_t stride;

  Keys(const RowMemory& kv, const Span& span, const AttentionShape& shape, Buffer<T>& gathered) : stride(kv.stride) {
    const int64_t D = shape.head_dim, to_k = span.kv_head * D, to_v = to_k + shape.num_kv_heads * D, seen = span.seen();
    const RowsOf<T> row(kv);
    k = row[span.begin] + to_k;
    v = row[span.begin] + to_v;
    if (span.stem == 0) return;
    T *keys = sized(gathered, 2 * span.keys() * D), *values = keys + span.keys() * D;
    for (int64_t i = 0; i < seen; ++i) {
      const T* from = row[span.token(i)];
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
  int64_t begin, n;   // of the span's queries
  int64_t first_row;  // of the query tensor

  int64_t keys() const { return span.stem + begin + n; }
  int64_t rows() const { return n * shape.group(); }
  int64_t valid(int64_t row) const { return keys() - n + row % n + 1; }
  int64_t query(int64_t row) const { return first_row + row % n; }
  int64_t head(int64_t row) const { return span.kv_head * shape.group() + row / n; }

  // Between the block's rows and those of a tensor that has the queries' heads. Rows from rows() to `filled` are 0.
  template <class T>
  const T* gather(const RowMemory& from, int64_t filled, Buffer<T>& buffer) const {
    T* to = sized(buffer, filled * shape.head_dim);
    std::fill_n(to + rows() * shape.head_dim, (filled - rows()) * shape.head_dim, T{0});
    const RowsOf<T> row(from);
    for (int64_t r = 0; r < rows(); ++r)
      std::copy_n(row[query(r)] + head(r) * shape.head_dim, shape.head_dim, to + r * shape.head_dim);
    return to;
  }
  template <class T>
  void scatter(const float* from, const RowMemory& to) const {
    const RowsOf<T> row(to);
    for (int64_t r = 0; r < rows(); ++r)
      row_table<T>().from_float(from + r * shape.head_dim, shape.head_dim, row[query(r)] + head(r) * shape.head_dim);
  }
};

// run(block) for the queries of a span, a block at a time.
template <class Run>
void for_blocks(const Span& span, const AttentionShape& shape, const Run& run) {
  for (const Queries& q : span.queries)
    for (int64_t begin = q.begin; begin < q.end; begin += kQueryRows)
      run(Block{span, shape, begin, std::min(kQueryRows, q.end - begin), q.row + begin - q.begin});
}

// The scores of a block of queries, R rows by the keys they see, and the products with them: by block kernels, which want the matrix
// filled up, or by the BLAS.
template <class T>
class Scores {
 public:
  explicit Scores(const Block& block) : blocks_(block.rows(), block.keys(), block.shape.head_dim), rows_(block.rows()) {}
  static bool in_blocks(int64_t head_dim) { return sizeof(T) == sizeof(Half) && brgemm_available() && brgemm_serves(head_dim); }

  int64_t rows() const { return in_blocks_ ? blocks_.rows : rows_; }
  int64_t keys() const { return in_blocks_ ? blocks_.filled_keys() : blocks_.keys; }  // the columns that are read
  int64_t stride() const { return in_blocks_ ? blocks_.stride : blocks_.keys; }
  int64_t size() const { return rows() * stride(); }
  void clear_below(T* p) const { std::fill_n(p + rows_ * stride(), (rows() - rows_) * stride(), T{0}); }

  // a[rows,D] keys[keys,D]^T
  void multiply_by_keys(const T* a, const T* keys, int64_t key_stride, float* out) const {
    if constexpr (sizeof(T) == sizeof(Half))
      if (in_blocks_) return blocks_.multiply_by_keys(a, keys, key_stride, out);
    product({false, true, rows_, blocks_.keys, blocks_.head_dim, blocks_.head_dim, key_stride, stride()}, a, keys, out);
  }
  // out[rows,D] = p values[keys,D]
  void mix(const T* p, const T* values, int64_t value_stride, float* out) const {
    if constexpr (sizeof(T) == sizeof(Half))
      if (in_blocks_) return blocks_.mix(p, values, value_stride, out);
    product({false, false, rows_, blocks_.head_dim, blocks_.keys, stride(), value_stride, blocks_.head_dim}, p, values, out);
  }
  // out[keys,D] += p^T a[rows,D]
  void add_transposed_mix(const T* p, const T* a, float* out) const {
    if constexpr (sizeof(T) == sizeof(Half))
      if (in_blocks_) return blocks_.add_transposed_mix(p, a, out);
    const int64_t D = blocks_.head_dim;
    product({true, false, blocks_.keys, D, rows_, stride(), D, D, 1.0f, 1.0f}, p, a, out);
  }

 private:
  ScoreBlocks blocks_;
  int64_t rows_;
  bool in_blocks_ = in_blocks(blocks_.head_dim);
};

// What the forward pass reads and writes; lse may be null.
struct Forward {
  RowMemory q, kv;
  const std::vector<TokenRun>& own;
  const AttentionShape& shape;
  const at::Tensor& o;
  float* lse;
};

template <class T>
void forward_span(const Forward& f, const Span& span, Scratch<T>& scratch) {
  if (span.queries.empty()) return;
  const AttentionShape& shape = f.shape;
  const int64_t D = shape.head_dim;
  const Keys<T> in(f.kv, span, shape, scratch.gathered);
  for_blocks(span, shape, [&](const Block& block) {
    const Scores<T> cells(block);
    const int64_t stride = cells.stride();
    float *scores = sized(scratch.scores, cells.size()), *mixed = sized(scratch.mixed, cells.rows() * D);
    T* p = sized(scratch.p, cells.size());
    cells.multiply_by_keys(block.gather(f.q, cells.rows(), scratch.q), in.k, in.stride, scores);
    for (int64_t r = 0; r < block.rows(); ++r) {
      const float l = row_table<T>().softmax_row(scores + r * stride, shape.scale(), block.valid(r), cells.keys(), p + r * stride);
      if (f.lse) f.lse[block.query(r) * shape.num_heads + block.head(r)] = l;
    }
    cells.clear_below(p);
    cells.mix(p, in.v, in.stride, mixed);
    block.scatter<T>(mixed, f.o);
  });
}

// What the backward pass reads and writes; lse may be null.
struct Backward {
  const AttentionRows& in;
  const AttentionOutput& out;
  const float* lse;
  const AttentionShape& shape;
  const AttentionRows& d_in;
  const std::vector<TokenRun>& own;
};

// Queries' gradients are written; those of the seen rows of keys and values are added to d_k and d_v of the scratch.
template <class T>
void backward_span(const Backward& b, const Span& span, Scratch<T>& scratch) {
  const AttentionShape& shape = b.shape;
  const RowTable<T>& row = row_table<T>();
  const int64_t D = shape.head_dim;
  const Keys<T> in(b.in.kv_TK, span, shape, scratch.gathered);
  const RowsOf<T> o(b.out.o_OQ);
  for_blocks(span, shape, [&](const Block& block) {
    const Scores<T> cells(block);
    const int64_t size = cells.size();
    float *scores = sized(scratch.scores, size), *d_p = sized(scratch.d_p, size), *d_q = sized(scratch.mixed, cells.rows() * D);
    T *p = sized(scratch.p, size), *d_s = sized(scratch.d_s, size);
    const T *q = block.gather(b.in.q_OQ, cells.rows(), scratch.q), *d_o = block.gather(b.out.d_o_OQ, cells.rows(), scratch.d_o);
    cells.multiply_by_keys(q, in.k, in.stride, scores);
    cells.multiply_by_keys(d_o, in.v, in.stride, d_p);
    for (int64_t r = 0; r < block.rows(); ++r) {
      const int64_t at = r * cells.stride(), valid = block.valid(r);
      const float l = b.lse ? b.lse[block.query(r) * shape.num_heads + block.head(r)]
                            : row.softmax_row(scores + at, shape.scale(), valid, cells.keys(), p + at);
      float lse_delta[2] = {l, row.dot(d_o + r * D, o[block.query(r)] + block.head(r) * D, D)};
      int64_t n_valid[2] = {cells.keys(), valid};
      row.softmax_backward_row(scores + at, d_p + at, shape.scale(), lse_delta, n_valid, p + at, d_s + at);
    }
    for (T* filled : {p, d_s}) cells.clear_below(filled);
    cells.add_transposed_mix(p, d_o, scratch.d_v.data());
    cells.add_transposed_mix(d_s, q, scratch.d_k.data());
    cells.mix(d_s, in.k, in.stride, d_q);
    block.scatter<T>(d_q, b.d_in.q_OQ);
  });
}

// Branches first: what they owe to the stem's keys and values adds up before the stem's own pass ends it.
template <class T>
void backward_unit(const Backward& b, const std::vector<Span>& unit, Scratch<T>& scratch) {
  const AttentionShape& shape = b.shape;
  const RowTable<T>& row = row_table<T>();
  const int64_t D = shape.head_dim;
  int64_t longest = 0;
  for (const Span& span : unit) longest = std::max(longest, span.keys());
  const RowsOf<T> d_kv(b.d_in.kv_TK);
  longest += ScoreBlocks::kKeyStep;  // what the last block's scores may be filled up to
  for (Buffer<float>* d : {&scratch.d_k, &scratch.d_v}) std::fill_n(sized(*d, longest * D), longest * D, 0.0f);
  for (const Span& span : unit) {
    if (span.stem > 0)  // what the branch before left after the stem
      for (float* d : {scratch.d_k.data(), scratch.d_v.data()}) std::fill_n(d + span.stem * D, span.length * D, 0.0f);
    if (!span.queries.empty()) backward_span<T>(b, span, scratch);
    for (int64_t i = 0; i < span.length; ++i) {
      T* out = d_kv[span.begin + i] + span.kv_head * D;
      row.from_float(scratch.d_k.data() + (span.stem + i) * D, D, out);
      row.from_float(scratch.d_v.data() + (span.stem + i) * D, D, out + shape.num_kv_heads * D);
    }
  }
}

template <class T>
void backward_units(const Backward& b, const Trees& trees) {
  const std::vector<std::vector<Span>> units = units_of(trees, b.own, b.shape);
  dynamic_for<Scratch<T>>(static_cast<int64_t>(units.size()), [&](int64_t i, Scratch<T>& scratch) {
    backward_unit<T>(b, units[static_cast<size_t>(i)], scratch);
  });
}

// Whether rows of that dtype attend in blocks; else some are brought to fp32 first.
bool multiplies(c10::ScalarType dtype, const AttentionShape& shape) {
  return dtype == at::kFloat || half_product_available() || Scores<Half>::in_blocks(shape.head_dim);
}

AttentionRows to(const AttentionRows& in, c10::ScalarType dtype) { return {in.q_OQ.to(dtype), in.kv_TK.to(dtype)}; }

template <class T>
void write_token(const CacheMemory& cache, const int32_t* table, int64_t position, const T* k, const AttentionShape& shape) {
  row_table<T>().write_cache(cache, table[position / cache.block_tokens], position % cache.block_tokens, k,
                             k + shape.num_kv_heads * shape.head_dim);
}

// Where each token stands.
struct Places {
  std::vector<const int32_t*> block_tables;
  std::vector<int64_t> positions;
};

Places places_of(const PagedTokens& tokens) {
  const int64_t num_tokens = tokens.positions_T.numel(), width = tokens.block_tables_SB.size(1);
  const int32_t* tables = pointer<int32_t>(tokens.block_tables_SB);
  const int64_t *sequences = pointer<int64_t>(tokens.sequence_T), *positions = pointer<int64_t>(tokens.positions_T);
  Places places{{}, {positions, positions + num_tokens}};
  for (int64_t t = 0; t < num_tokens; ++t) places.block_tables.push_back(tables + sequences[t] * width);
  return places;
}

// The places point into the tokens, which stay as they are.
struct PlacedPlan final : PagedPlan {
  explicit PlacedPlan(PagedTokens all) : PagedPlan(std::move(all)), places(places_of(tokens)) {}
  Places places;
};

// One token at a time against the cache; `chosen` are rows of the queries.
template <class T>
void attend_rows(const Forward& f, const Places& tokens, const std::vector<int64_t>& chosen, const CacheMemory& cache) {
  const RowTable<T>& row = row_table<T>();
  const AttentionShape& shape = f.shape;
  const int64_t D = shape.head_dim;
  const int64_t heads = shape.num_kv_heads;
  const RowsOf<T> q(f.q), o(f.o);
  dynamic_for<std::vector<float>>(std::ssize(chosen) * heads, [&](int64_t i, std::vector<float>& scratch) {
    const int64_t t = chosen[static_cast<size_t>(i / heads)], context = tokens.positions[static_cast<size_t>(t)] + 1;
    float* buffer = sized(scratch, (context + kLaneTokens + D) * shape.group());
    const PagedQuery query{tokens.block_tables[static_cast<size_t>(t)], context, i % heads};
    const int64_t head = query.kv_head * shape.group();
    row.paged_attention(cache, query, q[t] + head * D, shape.scale(), buffer, o[t] + head * D);
  });
}

std::vector<int64_t> cache_shape(int64_t num_blocks, int64_t block_tokens, const AttentionShape& shape) {
  return {num_blocks, shape.num_kv_heads, block_tokens, shape.head_dim};
}

// As the engine would have it: each branch in blocks of its own, with the stem's keys and values before its own.
template <class T>
void by_row(const Forward& f, const Trees& trees) {
  const AttentionShape& shape = f.shape;
  const OwnTokens own(f.own);
  const auto blocks_of = [](const Span& span) { return (span.seen() + kLaneTokens - 1) / kLaneTokens; };
  std::vector<Span> spans;
  int64_t num_blocks = 0;
  for (const Tree& tree : trees)
    for (Span& span : spans_of(tree, own, 0)) {
      num_blocks += blocks_of(span);
      spans.push_back(std::move(span));
    }
  const std::vector<int64_t> blocks_shape = cache_shape(num_blocks, kLaneTokens, shape);
  at::Tensor keys = at::empty(blocks_shape, f.o.options()), values = at::empty(blocks_shape, f.o.options());
  const CacheMemory cache{keys.data_ptr(), values.data_ptr(), shape.num_kv_heads, shape.head_dim, kLaneTokens, shape.group()};
  Places tokens;
  tokens.block_tables.resize(static_cast<size_t>(f.o.size(0)));
  tokens.positions.resize(tokens.block_tables.size());
  std::vector<int32_t> blocks(static_cast<size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  const int32_t* table = blocks.data();
  std::vector<int64_t> all;
  const RowsOf<T> kv(f.kv);
  for (const Span& span : spans) {
    for (int64_t i = 0; i < span.seen(); ++i) write_token(cache, table, i, kv[span.token(i)], shape);
    for (const Queries& q : span.queries)
      for (int64_t i = q.begin; i < q.end; ++i) {
        const int64_t row = q.row + i - q.begin;
        tokens.block_tables[static_cast<size_t>(row)] = table;
        tokens.positions[static_cast<size_t>(row)] = span.stem + i;
        all.push_back(row);
      }
    table += blocks_of(span);
  }
  attend_rows<T>(f, tokens, all, cache);
}

template <class T>
void forward_units(const Forward& f, const Trees& trees) {
  std::vector<Span> spans;
  for (const std::vector<Span>& unit : units_of(trees, f.own, f.shape)) spans.insert(spans.end(), unit.begin(), unit.end());
  dynamic_for<Scratch<T>>(static_cast<int64_t>(spans.size()), [&](int64_t i, Scratch<T>& scratch) {
    forward_span<T>(f, spans[static_cast<size_t>(i)], scratch);
  });
}

template <class T>
void paged(const Forward& f, const Trees& whole, const Places& tokens, const CacheMemory& cache) {
  const int64_t T_tokens = f.o.size(0);
  const RowsOf<T> kv(f.kv);
  at::parallel_for(0, T_tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      write_token(cache, tokens.block_tables[static_cast<size_t>(t)], tokens.positions[static_cast<size_t>(t)], kv[t], f.shape);
  });
  const bool packed = multiplies(f.o.scalar_type(), f.shape);
  if (packed) forward_units<T>(f, whole);
  std::vector<int64_t> left;
  size_t next = 0;
  for (int64_t t = 0; t < T_tokens;) {
    if (packed && next < whole.size() && whole[next].begin == t) t += whole[next++].stem;
    else left.push_back(t++);
  }
  attend_rows<T>(f, tokens, left, cache);
}

std::shared_ptr<const PackedPlan> plan_packed(Trees trees, std::vector<TokenRun> own, at::Device) {
  return std::make_shared<PackedPlan>(std::move(trees), std::move(own));
}

at::Tensor packed_attention(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape, at::Tensor* lse) {
  if (!multiplies(in.q_OQ.scalar_type(), shape)) return packed_attention(to(in, at::kFloat), plan, shape, lse).to(at::kBFloat16);
  at::Tensor o = at::empty({in.q_OQ.size(0), shape.q_width()}, in.q_OQ.options());
  float* lse_out = nullptr;
  if (lse) {
    *lse = at::empty({o.size(0), shape.num_heads}, o.options().dtype(at::kFloat));
    lse_out = lse->data_ptr<float>();
  }
  const Forward f{in.q_OQ, in.kv_TK, plan.own, shape, o, lse_out};
  by_dtype(o, [&]<class T>(T) { forward_units<T>(f, plan.trees); });
  return o;
}

at::Tensor packed_attention_by_row(const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape) {
  const at::Tensor o = at::empty({in.q_OQ.size(0), shape.q_width()}, in.q_OQ.options());
  const Forward f{in.q_OQ, in.kv_TK, plan.own, shape, o, nullptr};
  by_dtype(o, [&]<class T>(T) { by_row<T>(f, plan.trees); });
  return o;
}

void packed_attention_backward(const AttentionRows& in, const AttentionOutput& out, const PackedPlan& plan, const AttentionShape& shape,
                               const AttentionRows& d_in) {
  if (!multiplies(in.q_OQ.scalar_type(), shape)) {
    const AttentionRows d = to(d_in, at::kFloat);
    packed_attention_backward(to(in, at::kFloat), {out.o_OQ.to(at::kFloat), out.lse_ON, out.d_o_OQ.to(at::kFloat)}, plan, shape, d);
    d_in.q_OQ.copy_(d.q_OQ);
    d_in.kv_TK.copy_(d.kv_TK);
    return;
  }
  const Backward b{in, out, out.lse_ON.defined() ? out.lse_ON.data_ptr<float>() : nullptr, shape, d_in, plan.own};
  by_dtype(in.q_OQ, [&]<class T>(T) { backward_units<T>(b, plan.trees); });
}

std::shared_ptr<const PagedPlan> plan_paged(PagedTokens tokens, at::Device) { return std::make_shared<PlacedPlan>(std::move(tokens)); }

at::Tensor paged_attention(const at::Tensor& qkv, const PagedPlan& any_plan, const AttentionShape& shape, const PagedCache& cache) {
  const auto* plan = dynamic_cast<const PlacedPlan*>(&any_plan);
  TANDEM_CHECK(plan && std::ssize(plan->places.positions) == qkv.size(0) && cache.block_tokens % kLaneTokens == 0, "paged attention");
  at::Tensor o = at::empty({qkv.size(0), shape.q_width()}, qkv.options());
  const std::vector<TokenRun> all = {{0, qkv.size(0)}};
  const Forward f{qkv, {qkv, shape.q_width()}, all, shape, o, nullptr};
  const CacheMemory memory{cache.keys.data_ptr(), cache.values.data_ptr(), shape.num_kv_heads,
                           shape.head_dim,        cache.block_tokens,      shape.group()};
  by_dtype(qkv, [&]<class T>(T) { paged<T>(f, plan->tokens.whole, plan->places, memory); });
  return o;
}

int64_t block_tokens(at::DeviceType) { return kLaneTokens; }

}  // namespace

const AttentionKernels kAttentionKernels = {plan_packed, packed_attention, packed_attention_by_row, packed_attention_backward, cache_shape,
                                           kLaneTokens, block_tokens, plan_paged, nullptr, nullptr, paged_attention};

}  // namespace tandem::model::kernel::cpu
