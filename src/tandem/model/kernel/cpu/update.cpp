// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/cpu.h"

#include <cmath>
#include <vector>

#include "tandem/model/kernel/cpu/row_loop.h"

namespace tandem::model::kernel::cpu {
namespace {

void adamw(const AdamTensors& t, const AdamStep& s) {
  const AdamArgs args{.master = t.master.data_ptr<float>(),
                      .half = pointer<Half>(t.rounded),
                      .grad = t.grad.data_ptr<float>(),
                      .m = t.m.data_ptr<float>(),
                      .v = t.v.data_ptr<float>(),
                      .grad_scale = static_cast<float>(s.grad_scale),
                      .lr = static_cast<float>(s.lr),
                      .beta1 = static_cast<float>(s.beta1),
                      .beta2 = static_cast<float>(s.beta2),
                      .eps = static_cast<float>(s.eps),
                      .weight_decay = static_cast<float>(s.weight_decay),
                      .bias1 = static_cast<float>(1.0 - std::pow(s.beta1, s.step)),
                      .bias2 = static_cast<float>(1.0 - std::pow(s.beta2, s.step))};
  at::parallel_for(0, t.master.numel(), 1 << 15, [&](int64_t begin, int64_t end) { rows().fp.adamw(args, begin, end); });
}

void add_squares(const at::Tensor& x, double divisor, at::Tensor& sums, int64_t i) {
  constexpr int64_t kPart = 1 << 16;  // fixed, so that the number of threads does not change the sum
  const int64_t n = x.numel(), num_parts = (n + kPart - 1) / kPart;
  std::vector<double> parts(static_cast<size_t>(num_parts));
  const float* values = x.data_ptr<float>();
  at::parallel_for(0, num_parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p)
      parts[static_cast<size_t>(p)] = rows().fp.sum_of_squares(values + p * kPart, std::min(kPart, n - p * kPart));
  });
  double total = 0;
  for (double part : parts) total += part;
  sums.data_ptr<double>()[i] += total / divisor;
}

}  // namespace

const UpdateKernels kUpdateKernels = {adamw, add_squares};

}  // namespace tandem::model::kernel::cpu
