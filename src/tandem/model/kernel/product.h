// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products as a backend has them.
//
// M rows (tokens), K input features, N output features; S rows by expert, E experts. Activations and weights share one dtype; gradients
// of weights are fp32. Sums are fp32, and a result is rounded once, to the dtype of where it goes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::model::kernel {

/// Rows of a product in parity mode: whatever the number of rows, they run so many at a time, filled up with zeros.
inline constexpr int64_t kParityRows = 32;

/// Elements of a weight's gradient that are fp32 on a CUDA device before they are added to the sum.
inline constexpr int64_t kDeviceSumElements = 32 << 20;

enum class Library { kBlas, kOneDnn, kBrgemm };
/// Of bfloat16 logits: fp32 copies of both factors are multiplied, or the BLAS or brgemm multiply bfloat16 itself. In float32: kCopies.
enum class Logits { kCopies, kBlas, kBrgemm };

/// Which library computes each kind of product, where a backend has several. Others have the one that is written here.
struct GemmChoice {
  Library forward = Library::kBlas;
  Library input_grad = Library::kBlas;
  Library weight_grad = Library::kBlas;
  Logits logits = Logits::kCopies;
  bool operator==(const GemmChoice&) const = default;
};

/// As options, logs and checkpoints have it, such as "onednn onednn brgemm float". Of logits kCopies is float, and kBlas half.
std::string to_text(const GemmChoice& choice);
/// Nullopt for a text that is no choice of this version.
std::optional<GemmChoice> parse_choice(const std::string& text);

/// What a run computes in. In parity mode a row of an output does not depend on the rows beside it.
struct Numerics {
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool parity = false;
  GemmChoice choice;
};

/// A copy of a weight in the order that a product reads it. It belongs to one version of the weights and goes with it.
struct PackedWeight {
  at::Tensor data;         ///< the backend's own
  int64_t N = 0, K = 0;    ///< 0: there is none
  bool in_blocks = false;  ///< of a head: the product is fp32
  int64_t most_rows = 0;   ///< up to which it is the fastest way
  int64_t num_bytes = 0;

  bool defined() const { return N > 0; }
  bool serves(int64_t rows) const { return defined() && rows <= most_rows; }
};

/// Rows that lie by expert: those of expert e from offsets[e] to offsets[e + 1].
struct ExpertRows {
  std::vector<int64_t> offsets;

  int64_t num_experts() const { return std::ssize(offsets) - 1; }
  int64_t num_rows() const { return offsets.back(); }
};

/// No rows are as good as some. Weights of experts are [E*N, K]. Errors: InternalError on shapes that do not fit.
struct ProductKernels {
  /// Whether this machine can compute products in that dtype by that choice, and what every machine can.
  bool (*can_compute)(const GemmChoice& choice, c10::ScalarType dtype);
  GemmChoice (*plain_choice)(c10::ScalarType dtype);
  /// What there is to choose from on this machine, for an error; null where there is one choice.
  std::string (*choices)(c10::ScalarType dtype);
  /// The fastest; takes some tenths of a second where there is a choice.
  GemmChoice (*measured_choice)(c10::ScalarType dtype);

  /// out[M,N] = x[M,K] w[N,K]^T; out has x's dtype.
  void (*forward)(const Numerics&, at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK);
  /// The same with an fp32 out.
  void (*forward_float)(const Numerics&, at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK);
  /// dx[M,K] = dy[M,N] w[N,K]
  void (*input_grad)(const Numerics&, at::Tensor& dx_MK, const at::Tensor& dy_MN, const at::Tensor& w_NK);
  /// dw[N,K] += dy[M,N]^T x[M,K]; dw is fp32.
  void (*weight_grad)(const Numerics&, at::Tensor& dw_NK, const at::Tensor& dy_MN, const at::Tensor& x_MK);

  /// y[S,N]: each expert's rows of x times its weight.
  at::Tensor (*grouped_forward)(const Numerics&, const at::Tensor& x_SK, const at::Tensor& w_ENK, const ExpertRows& rows);
  at::Tensor (*grouped_input_grad)(const Numerics&, const at::Tensor& dy_SN, const at::Tensor& w_ENK, const ExpertRows& rows);
  void (*grouped_weight_grad)(const Numerics&, at::Tensor& dw_ENK, const at::Tensor& dy_SN, const at::Tensor& x_SK, const ExpertRows& rows);

  /// A packed copy of w[N,K], contiguous; none where the backend has no use for one.
  PackedWeight (*pack)(const Numerics&, const at::Tensor& w_NK);
  /// The same of a head, whose products are fp32.
  PackedWeight (*pack_head)(const Numerics&, const at::Tensor& w_NK);
  /// x w^T, with x's dtype, or in fp32 for a head; x is contiguous.
  at::Tensor (*packed_product)(const at::Tensor& x_MK, const PackedWeight& w);
};

}  // namespace tandem::model::kernel
