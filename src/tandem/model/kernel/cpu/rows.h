// SPDX-License-Identifier: Apache-2.0
#pragma once
// The row kernels: everything a decoder does besides the matrix products of libraries. One source, rows_isa.inc, is compiled
// once per instruction set; rows() picks the best table this processor runs. A row's result depends on that row alone, so it
// is the same bits whoever shares the batch and however many threads run.
//
// T rows, H hidden, D head dimension, V vocabulary. `Half` is bfloat16 as its 16 bits.

#include <cstdint>
#include <vector>

namespace tandem::model::kernel::cpu {

using Half = uint16_t;

/// Sequence positions of one query against a paged cache; see paged_attention.
struct PagedQuery {
  const int32_t* block_table;
  int64_t context;      ///< keys it sees: positions 0 .. context-1
  int64_t kv_head;
};
/// The cache of one layer. Keys: [block][kv_head][block_tokens/16][D][16]; values: [block][kv_head][block_tokens][D].
struct CacheMemory {
  void* keys;
  void* values;
  int64_t num_kv_heads, head_dim, block_tokens;
  int64_t heads_per_kv;
};

/// log softmax(logits / T), from sums over the logits below the largest: where one token is nearly certain, its
/// log-probability keeps its relative precision.
struct LogSoftmax {
  float inv_temperature;
  float max;      ///< of the logits
  float log_sum;  ///< of exp((logit - max) / T)
  float entropy;
  float of(float logit) const { return (logit - max) * inv_temperature - log_sum; }
};

/// What of a row's log-probability and entropy goes into the gradient of its logits: factors of both, over T.
struct RowGrad {
  float scale;          ///< of d log p(target)
  float entropy_scale;  ///< of d entropy; at 0 it costs nothing
  int64_t target;
};

struct AdamArgs {
  float* master;        ///< fp32 parameters
  Half* half;           ///< rounded copy, or null
  const float* grad;
  float *m, *v;
  float grad_scale;     ///< clipping
  float lr, beta1, beta2, eps, weight_decay;
  float bias1, bias2;   ///< 1 - beta^step
};

/// A few rows of x times a few rows of an unpacked weight: out[r][c] = x[r] . w[c]. A row's values do not depend on the others.
template <class T>
struct DotTile {
  const float* x;          ///< [rows] of K
  const T* w;              ///< [columns] of K
  int64_t K, rows, columns;  ///< any rows and columns: they are taken dot_rows and dot_columns at a time
  T* out;                  ///< [rows] of `columns`, out_stride apart
  int64_t out_stride;
};

template <class T>
struct RowTable {
  /// x_out = x (+ delta), normed = x_out * rstd * weight.   delta may be null; x_out may be x.
  void (*add_rms_norm)(const T* x, const T* delta, const T* weight, float eps, int64_t H, T* x_out, T* normed, float* rstd);
  /// dx = d_residual + gradient through the norm; d_weight accumulates in fp32. d_residual may be null.
  void (*rms_norm_backward)(const T* d_normed, const T* x, const T* weight, float rstd, const T* d_residual, int64_t H, T* dx,
                            float* d_weight);
  /// out = rotate(qkv + bias) for the first `rotated` heads, qkv + bias for the others. bias may be null. direction -1 undoes it.
  void (*rope)(const T* qkv, const T* bias, const float* cos_sin, int64_t heads, int64_t rotated, int64_t D, float direction, T* out);
  void (*swiglu)(const T* gate_up, int64_t F, T* out);
  void (*swiglu_backward)(const T* gate_up, const T* d_out, int64_t F, T* d_gate_up);
  /// Writes one token's keys and values into its slot of the cache.
  void (*write_cache)(const CacheMemory& cache, int64_t block, int64_t slot, const T* k, const T* v);
  /// One token against its keys: q and out are the heads_per_kv heads of the query's kv head. scratch: (context + 16 + D) * heads_per_kv.
  void (*paged_attention)(const CacheMemory& cache, const PagedQuery& query, const T* q, float scale, float* scratch, T* out);
  /// probabilities[j] = exp(scores[j]*scale - max) / sum for j < valid, 0 up to n. Returns log-sum-exp.
  float (*softmax_row)(const float* scores, float scale, int64_t valid, int64_t n, T* probabilities);
  /// From scores and lse: probabilities again, and d_scores = p * (d_p - delta) * scale, both zero from `valid` to n.
  void (*softmax_backward_row)(const float* scores, const float* d_p, float scale, float lse_delta[2], int64_t n_valid[2],
                               T* probabilities, T* d_scores);
  float (*dot)(const T* a, const T* b, int64_t n);
  void (*dot_tile)(const DotTile<T>& tile);
  void (*to_float)(const T* in, int64_t n, float* out);
  void (*from_float)(const float* in, int64_t n, T* out);
  void (*add_columns)(const T* row, int64_t n, float* sums);   ///< sums += row
  /// d_logits = scale * (onehot(target) - p) - entropy_scale * p * (log p + entropy), p = softmax; a target outside [0, n) adds no
  /// one. d_logits may be logits.
  void (*logit_grad)(const float* logits, int64_t n, const LogSoftmax& softmax, const RowGrad& grad, T* d_logits);
};

/// Over fp32 logits of one row.
struct LogitStats {
  float max;       ///< of the logits
  float rest;      ///< sum of exp((logit - max) / T), one largest logit left out
  float weighted;  ///< sum of exp(z) * z, z = (logit - max) / T; for the entropy
};

/// A few rows of x times one panel: columns of a packed weight, side by side (see packed.h).
struct PanelTile {
  const float* x;          ///< [rows] of K, x_stride apart
  int64_t x_stride, rows;  ///< rows: at most panel_rows
  const float* panel;      ///< [K][panel_columns]
  int64_t K;
  float* out;              ///< [rows] of `columns`, out_stride apart
  int64_t out_stride, columns;
  bool add;                ///< to what `out` holds
  const float* ahead;      ///< what this thread reads next: one row of a panel is fetched in every `ahead_step` steps
  int64_t ahead_step;
};

struct FloatTable {
  int64_t panel_columns, panel_rows;
  void (*panel_product)(const PanelTile& tile);
  LogitStats (*logit_stats)(const float* logits, int64_t n, float inv_temperature);
  /// Sum of exp((logit - max) / T); each is fp32, their sum fp64.
  double (*mass)(const float* logits, int64_t n, float inv_temperature, float max);
  /// First index whose running sum of the same exceeds `threshold`; the last with any mass if none does. It never has none itself.
  int64_t (*pick)(const float* logits, int64_t n, float inv_temperature, float max, double threshold);
  int64_t (*argmax)(const float* logits, int64_t n);  ///< lowest index among equals
  void (*adamw)(const AdamArgs& args, int64_t begin, int64_t end);
  double (*sum_of_squares)(const float* x, int64_t n);
  void (*add)(const float* x, int64_t n, float* sums);
};

struct Rows {
  RowTable<float> f32;
  RowTable<Half> bf16;
  FloatTable fp;
  const char* isa;
};

/// The best table for this processor.
const Rows& rows();
/// Every table that this processor can run, the best one last; tests hold them against each other.
std::vector<const Rows*> all_rows();

template <class T>
const RowTable<T>& row_table();
template <>
inline const RowTable<float>& row_table<float>() { return rows().f32; }
template <>
inline const RowTable<Half>& row_table<Half>() { return rows().bf16; }

}  // namespace tandem::model::kernel::cpu
