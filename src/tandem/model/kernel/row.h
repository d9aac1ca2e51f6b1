// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder does to single rows besides products. A row's result depends on that row alone.
//
// T tokens, H hidden, W width of a row of heads, D head dimension, F intermediate. Tensors are contiguous; `dtype` is the compute dtype.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tandem/model/kernel/attention.h"

namespace tandem::model::kernel {

struct Normed {
  at::Tensor sum_TH;     ///< x + delta, rounded; x itself where there is no delta
  at::Tensor normed_TH;  ///< sum * rstd * weight
  at::Tensor rstd_T;     ///< fp32: 1 / sqrt(mean of squares + eps)
};
/// What the backward pass of a norm reads; d_sum may be undefined.
struct NormGrad {
  at::Tensor d_normed_TH, d_sum_TH, x_TH, weight_H, rstd_T;
};

/// Query and key heads of qkv rows, each normed by the first D of `norms` or the others; values pass.
struct NormedHeads {
  at::Tensor qkv_TW;
  at::Tensor rstd_TN;  ///< fp32, of the query and key heads
};
struct HeadNormGrad {
  at::Tensor d_TW, qkv_TW, norms_2D, rstd_TN;
};

/// cos_sin_PD: row p holds the D/2 cosines, then the D/2 sines of position p.
struct Rotation {
  at::Tensor cos_sin_PD;   ///< fp32
  at::Tensor positions_T;  ///< int64
  AttentionShape shape;
};

struct RowKernels {
  /// x[T,H]: rows of the table; ids outside [first_row, first_row + rows) give zeros: another TP rank has them.
  at::Tensor (*embed)(const at::Tensor& table_VH, const at::Tensor& ids_T, int64_t first_row);
  /// grad (fp32) += the rows of d, in the order of tokens.
  void (*embed_backward)(at::Tensor& grad_VH, const at::Tensor& d_TH, const at::Tensor& ids_T, int64_t first_row);

  /// delta may be undefined.
  Normed (*add_rms_norm)(const at::Tensor& x_TH, const at::Tensor& delta_TH, const at::Tensor& weight_H, double eps);
  /// dx[T,H]; weight_grad (fp32) adds up, and may be undefined.
  at::Tensor (*rms_norm_backward)(const NormGrad& in, at::Tensor& weight_grad_H);
  NormedHeads (*head_norm)(const at::Tensor& qkv_TW, const at::Tensor& norms_2D, double eps, const AttentionShape& shape);
  at::Tensor (*head_norm_backward)(const HeadNormGrad& in, const AttentionShape& shape, at::Tensor& norms_grad_2D);

  /// Adds the bias (may be undefined) and rotates query and key heads: by the angles, or back where `forward` is false.
  at::Tensor (*rope)(const at::Tensor& qkv_TW, const at::Tensor& bias_W, const Rotation& rotation, bool forward);
  /// sums (fp32) += the sum of the rows.
  void (*add_rows)(at::Tensor& sums_W, const at::Tensor& d_TW);

  /// silu(gate) * up, of rows [gate | up].
  at::Tensor (*swiglu)(const at::Tensor& gate_up_T2F);
  at::Tensor (*swiglu_backward)(const at::Tensor& gate_up_T2F, const at::Tensor& d_TF);

  /// out[i] = x[rows[i]], of any dtype. A row may be taken several times.
  at::Tensor (*gather)(const at::Tensor& x_TH, const at::Tensor& rows_R);
  /// [num_rows, H]: zeros, but out[rows[i]] = x[i]. Rows are listed once.
  at::Tensor (*scatter)(const at::Tensor& x_RH, const at::Tensor& rows_R, int64_t num_rows);
  /// Each row times its factor, which is fp32.
  at::Tensor (*scale)(const at::Tensor& x_TF, const at::Tensor& factors_T);
  /// fp32: the product of each row of a with that of b, summed.
  at::Tensor (*dot)(const at::Tensor& a_TF, const at::Tensor& b_TF);
};

}  // namespace tandem::model::kernel
