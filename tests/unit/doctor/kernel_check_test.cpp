// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/kernel_check.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

namespace tandem::doctor {
namespace {

using namespace model::kernel;

KernelReport report_of(const Backend& backend, Extent extent = Extent::kOddSizes) {
  KernelReport all;
  check_kernels(backend, at::kCPU, extent, [&](const KernelReport& of_group) {
    all.worst.insert(of_group.worst.begin(), of_group.worst.end());
    all.faults.insert(all.faults.end(), of_group.faults.begin(), of_group.faults.end());
  });
  return all;
}

std::vector<std::string> wrong(const Backend& backend) {
  std::vector<std::string> names;
  for (const KernelFault& fault : report_of(backend).faults) names.push_back(fault.kernel);
  return names;
}

TEST(KernelCheck, EveryBackendComputesWhatItsFormulasSay) {
  for (const Backend* backend : {&cpu::backend(), &aten::backend()}) {
    const KernelReport report = report_of(*backend);
    for (const KernelFault& fault : report.faults) ADD_FAILURE() << backend->name << ": " << fault.kernel << ": " << fault.what;
    EXPECT_GE(report.worst.size(), 30U);
  }
}

using Names = std::vector<std::string>;

TEST(KernelCheck, AWrongScaleIsNamed) {
  Backend mutant = cpu::backend();
  mutant.row.swiglu = [](const at::Tensor& gate_up) { return cpu::backend().row.swiglu(gate_up) * 1.02; };
  EXPECT_EQ(wrong(mutant), Names{"row.swiglu"});
  mutant = aten::backend();
  mutant.update.adamw = [](const AdamTensors& t, const AdamStep& s) {
    AdamStep other = s;
    other.beta2 *= 0.999;
    aten::backend().update.adamw(t, other);
  };
  EXPECT_EQ(wrong(mutant), Names{"update.adamw"});
}

TEST(KernelCheck, ADroppedLastRowIsNamed) {
  Backend mutant = cpu::backend();
  mutant.product.forward = [](const Numerics& n, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
    at::Tensor most = out.narrow(0, 0, out.size(0) - 1);
    out.zero_();
    cpu::backend().product.forward(n, most, x.narrow(0, 0, x.size(0) - 1), w);
  };
  EXPECT_EQ(wrong(mutant), Names{"product.forward"});
  mutant = cpu::backend();
  mutant.row.embed_backward = [](at::Tensor& grad, const at::Tensor& d, const at::Tensor& ids, int64_t first_row) {
    const int64_t rows = d.size(0) - 1;
    cpu::backend().row.embed_backward(grad, d.narrow(0, 0, rows), ids.narrow(0, 0, rows), first_row);
  };
  EXPECT_EQ(wrong(mutant), Names{"row.embed_backward"});
}

// As a captured graph would that keeps the address of an input, and reads what lies there now.
TEST(KernelCheck, AStaleInputIsNamed) {
  static at::Tensor kept;
  kept = at::Tensor();
  Backend mutant = cpu::backend();
  mutant.row.rope = [](const at::Tensor& qkv, const at::Tensor& bias, const Rotation& rotation, bool forward) {
    if (!kept.defined()) kept = rotation.positions_T;
    return cpu::backend().row.rope(qkv, bias, {rotation.cos_sin_PD, kept, rotation.shape}, forward);
  };
  EXPECT_EQ(wrong(mutant), Names{"row.rope"});
}

TEST(KernelCheck, ASwappedExpertIsNamed) {
  Backend mutant = cpu::backend();
  mutant.product.grouped_forward = [](const Numerics& n, const at::Tensor& x, const at::Tensor& w, const ExpertRows& rows) {
    const int64_t N = w.size(0) / rows.num_experts();
    at::Tensor swapped = w.clone();
    swapped.narrow(0, 0, N).copy_(w.narrow(0, N, N));
    swapped.narrow(0, N, N).copy_(w.narrow(0, 0, N));
    return cpu::backend().product.grouped_forward(n, x, swapped, rows);
  };
  EXPECT_EQ(wrong(mutant), Names{"product.grouped_forward"});
  mutant = aten::backend();
  mutant.expert.route = [](const at::Tensor& logits, const at::Tensor& bias, const RouterShape& shape, const at::Tensor& chosen) {
    Routed routed = aten::backend().expert.route(logits, bias, shape, chosen);
    routed.experts_Tk = routed.experts_Tk.flip(1);
    return routed;
  };
  EXPECT_EQ(wrong(mutant), Names{"expert.route"});
}

TEST(KernelCheck, WhatThrowsIsNamed) {
  Backend mutant = cpu::backend();
  mutant.logit.draw = [](const at::Tensor&, const DrawArgs&) -> at::Tensor { throw std::runtime_error("no kernel image"); };
  const KernelReport report = report_of(mutant);
  ASSERT_EQ(report.faults.size(), 1U);
  EXPECT_EQ(report.faults[0].kernel, "logit.draw");
  EXPECT_NE(report.faults[0].what.find("no kernel image"), std::string::npos);
}

}  // namespace
}  // namespace tandem::doctor
