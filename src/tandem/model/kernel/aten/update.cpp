// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>

#include "tandem/model/kernel/aten/aten.h"

namespace tandem::model::kernel::aten {
namespace {

// Elements at a time; of a sum, too, so that its order is fixed.
int64_t part_of(const at::Tensor& t) { return t.is_cpu() ? 1 << 20 : 1 << 26; }

void adamw_part(const AdamTensors& t, const AdamStep& s) {
  const double bias1 = 1.0 - std::pow(s.beta1, s.step), bias2 = 1.0 - std::pow(s.beta2, s.step);
  const at::Tensor g = t.grad * s.grad_scale;
  t.m.mul_(s.beta1).add_(g, 1 - s.beta1);
  t.v.mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  t.master.mul_(1 - s.lr * s.weight_decay).addcdiv_(t.m, at::sqrt(t.v).mul_(1 / std::sqrt(bias2)).add_(s.eps), -s.lr / bias1);
  if (t.rounded.defined()) t.rounded.copy_(t.master);
}

// In one pass over memory, where libtorch has that.
void fused_adamw(const AdamTensors& t, const AdamStep& s) {
  const at::Tensor step = at::full({}, static_cast<double>(s.step), t.master.options());
  const at::Tensor grad = s.grad_scale == 1 ? t.grad : t.grad * s.grad_scale;
  at::_fused_adamw_({t.master}, {grad}, {t.m}, {t.v}, {}, {step}, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
  if (t.rounded.defined()) t.rounded.copy_(t.master);
}

void adamw(const AdamTensors& t, const AdamStep& s) {
  const int64_t step = part_of(t.master);
  for (int64_t begin = 0; begin < t.master.numel(); begin += step) {
    const auto part = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, begin, std::min(step, all.numel() - begin)) : all;
    };
    (t.master.is_cuda() ? fused_adamw : adamw_part)({part(t.master), part(t.rounded), part(t.grad), part(t.m), part(t.v)}, s);
  }
}

void add_squares(const at::Tensor& x, double divisor, at::Tensor& sums, int64_t i) {
  at::Tensor sum = sums.narrow(0, i, 1);
  const int64_t step = part_of(x);
  for (int64_t begin = 0; begin < x.numel(); begin += step)
    sum.add_(x.narrow(0, begin, std::min(step, x.numel() - begin)).to(at::kDouble).square().sum().div_(divisor));
}

}  // namespace

const UpdateKernels kUpdateKernels = {adamw, add_squares};

}  // namespace tandem::model::kernel::aten
