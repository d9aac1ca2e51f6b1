// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a model computes with: a backend, and in which dtype it does so.

#include <string>

#include "tandem/model/kernel/backend.h"

namespace tandem::model::kernel {

/// A value. Uses the backend, which lives as long as the program.
class Kernels {
 public:
  /// Takes the products that are measured to be fastest, but in parity mode.
  Kernels(const Backend& backend, c10::ScalarType dtype, bool parity, at::Device device = at::kCPU);
  /// A choice made elsewhere; nothing is measured.
  Kernels(const Backend& backend, c10::ScalarType dtype, const GemmChoice& choice, at::Device device = at::kCPU)
      : backend_(&backend), device_(device), numerics_{dtype, false, choice} {}

  /// The same for another device of the kind.
  Kernels on(at::Device device) const {
    Kernels other = *this;
    other.device_ = device;
    return other;
  }

  const Backend& backend() const { return *backend_; }
  /// Where every tensor is that they are given.
  at::Device device() const { return device_; }
  at::TensorOptions options(c10::ScalarType type) const { return at::TensorOptions(type).device(device_); }
  const Numerics& numerics() const { return numerics_; }
  bool parity() const { return numerics_.parity; }
  c10::ScalarType dtype() const { return numerics_.dtype; }
  const GemmChoice& choice() const { return numerics_.choice; }
  /// Names the products.
  std::string description() const;

  const RowKernels& row() const { return backend_->row; }
  const AttentionKernels& attention() const { return backend_->attention; }
  const LogitKernels& logit() const { return backend_->logit; }
  const ExpertKernels& expert() const { return backend_->expert; }
  const ProductKernels& product() const { return backend_->product; }

  /// As ProductKernels has them.
  void forward(at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK) const {
    product().forward(numerics_, out_MN, x_MK, w_NK);
  }
  void forward_float(at::Tensor& out_MN, const at::Tensor& x_MK, const at::Tensor& w_NK) const {
    product().forward_float(numerics_, out_MN, x_MK, w_NK);
  }
  void input_grad(at::Tensor& dx_MK, const at::Tensor& dy_MN, const at::Tensor& w_NK) const {
    product().input_grad(numerics_, dx_MK, dy_MN, w_NK);
  }
  void weight_grad(at::Tensor& dw_NK, const at::Tensor& dy_MN, const at::Tensor& x_MK) const {
    product().weight_grad(numerics_, dw_NK, dy_MN, x_MK);
  }

 private:
  const Backend* backend_;
  at::Device device_;
  Numerics numerics_;
};

}  // namespace tandem::model::kernel
