// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products. Which library runs each kind is measured at start, not guessed from the vendor's name; in parity mode
// it is fixed, and products run in chunks of kParityRows rows, so that a row's bits do not depend on its company.
// The library decides the order of a sum and its speed, never what is rounded: sums are fp32, and a result is rounded once, to the dtype
// of where it goes. Activations and their gradients go to the compute dtype; logits and weight gradients stay fp32.
//
// M rows (tokens), K input features, N output features. Activations and weights share one dtype; gradients are fp32.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tandem/model/kernel/rows.h"

namespace tandem::model::kernel {

inline constexpr int64_t kParityRows = 32;

enum class Library { kBlas, kOneDnn, kBrgemm };
/// Of bfloat16 logits: fp32 copies of both factors are multiplied, or the BLAS or brgemm.h multiply bfloat16 itself. In float32: kCopies.
enum class Logits { kCopies, kBlas, kBrgemm };

/// What was chosen for each kind of product, with the speed that decided.
struct GemmChoice {
  Library forward = Library::kBlas;
  Library input_grad = Library::kBlas;
  Library weight_grad = Library::kBlas;
  Logits logits = Logits::kCopies;
};

/// As options, logs and checkpoints have it, such as "onednn onednn brgemm float". Of logits kCopies is float, and kBlas half.
std::string to_text(const GemmChoice& choice);
/// Nullopt for a text that is no choice of this version.
std::optional<GemmChoice> parse_choice(const std::string& text);

/// Whether this machine can compute products in that dtype by that choice. In float32, logits have no way of their own, and
/// oneDNN serves only the processors that libtorch takes it for. In bfloat16, forward and
/// input gradient come from oneDNN. Weight gradient and logits may come from a BLAS, if libtorch has one for bfloat16, or from brgemm.h,
/// if the processor has its instructions: oneDNN would round its result, so it gets fp32 copies of both factors, or the BLAS does where it
/// has no fp32 product.
bool can_compute(const GemmChoice& choice, c10::ScalarType dtype);
/// What every processor computes in that dtype.
GemmChoice plain_choice(c10::ScalarType dtype);

/// Threads    const methods from any thread. No rows are as good as some.
/// Errors     InternalError on shapes that do not fit.
class Gemm {
 public:
  /// Measures for a few tenths of a second, except in parity mode.
  Gemm(c10::ScalarType dtype, bool parity);
  /// A choice made elsewhere; nothing is measured.
  Gemm(c10::ScalarType dtype, const GemmChoice& choice) : dtype_(dtype), parity_(false), choice_(choice) {}

  /// out[M,N] = x[M,K] w[N,K]^T; out has x's dtype.
  void forward(at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK) const;
  /// The same into an fp32 buffer, for logits.
  void forward_float(at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK) const;
  /// dx[M,K] = dy[M,N] w[N,K]
  void input_grad(at::Tensor& dx_MK, const at::Tensor& dy_MN, const at::Tensor& w_NK) const;
  /// dw[N,K] += dy[M,N]^T x[M,K]; dw is fp32.
  void weight_grad(at::Tensor& dw_NK, const at::Tensor& dy_MN, const at::Tensor& x_MK) const;

  bool parity() const { return parity_; }
  c10::ScalarType dtype() const { return dtype_; }
  const GemmChoice& choice() const { return choice_; }
  std::string description() const;

 private:
  void measure();
  void forward_by(Library library, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) const;
  void forward_of_copies(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) const;
  void forward_chunk(at::Tensor& out, const at::Tensor& x, const at::Tensor& w, Library library) const;

  c10::ScalarType dtype_;
  bool parity_;
  GemmChoice choice_;
};

/// One row-major product for the inside of attention, single-threaded when called from a parallel region:
/// c[m,n] = alpha * op(a) op(b) + beta * c, fp32 result. Half operands need half_product_available().
struct Product {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  float alpha = 1, beta = 0;
};
void product(const Product& p, const float* a, const float* b, float* c);
void product(const Product& p, const Half* a, const Half* b, float* c);
bool half_product_available();

}  // namespace tandem::model::kernel
