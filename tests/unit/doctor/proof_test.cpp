// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/proof.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "../../temporary_folder.h"
#include "tests/fake_device/trouble.h"
#include "tandem/device/device.h"
#include "tandem/doctor/model_check.h"
#include "tandem/doctor/speed_check.h"
#include "tandem/doctor/trust.h"

namespace tandem::doctor {
namespace {

std::vector<Check> checks_of_models(const model::kernel::Backend& backend, at::Device device) {
  std::vector<Check> checks;
  check_models(backend, device, [&](const Check& check) { checks.push_back(check); });
  return checks;
}

// Of those that failed, how many have that in their name.
int64_t num_wrong(const std::vector<Check>& checks, const std::string& name) {
  return std::ranges::count_if(checks, [&](const Check& check) { return !check.passed && check.name.find(name) != std::string::npos; });
}

// On the fake device a read that does not wait, or memory that is freed too early, is a wrong number. It comes first: libtorch counts the
// devices of a process at its first backward pass.
TEST(Proof, TheFakeDeviceAndTheProcessorProveThemselves) {
  for (const auto& [device, kernels] : {std::pair{"fake", "auto"}, std::pair{"cpu", "aten"}}) {
    std::string page;
    device::fake::have_trouble("devices=3", "the test");
    const Proof proof = prove(kernels, device_to_prove(device), Thoroughness::kAll, [&](const Check& check) { page += line_of(check); });
    EXPECT_EQ(proof.num_failed(), 0) << page;
    EXPECT_EQ(proof.fault(), "");
    EXPECT_GE(proof.checks.size(), 90U);
    EXPECT_EQ(std::ranges::count(page, '\n'), std::ssize(proof.checks));
    EXPECT_EQ(last_line(proof), std::to_string(proof.checks.size()) + " passed, 0 failed\n");
    EXPECT_EQ(to_json(proof).at("failed"), 0);
  }
}

// The second device of the kind, and sizes at which a sum has thousands of terms.
TEST(Proof, TheFullFormAsksEveryDevice) {
  device::fake::have_trouble("devices=2", "the test");
  const Proof proof = prove("auto", device_to_prove("fake"), Thoroughness::kFull);
  EXPECT_EQ(proof.fault(), "");
  const auto asks = [&](const std::string& name) { return std::ranges::count(proof.checks, name, &Check::name); };
  EXPECT_EQ(asks("kernel product.forward"), 1);
  EXPECT_EQ(asks("kernel product.forward, sizes of models"), 1);
  EXPECT_EQ(asks("device 1: kernel product.forward"), 1);
}

// Once it has, the folder says so for this program; what is no proof is not taken for one.
TEST(Proof, AKindOfDeviceIsAskedOnce) {
  const test::TemporaryFolder folder("proofs");
  const auto proofs = [&] { return std::distance(std::filesystem::directory_iterator(folder.path()), {}); };
  trust(at::kCPU, "aten", folder.path());
  ASSERT_EQ(proofs(), 1);
  const std::filesystem::path kept = std::filesystem::directory_iterator(folder.path())->path();
  const auto written = std::filesystem::last_write_time(kept);
  trust(at::kCPU, "aten", folder.path());
  EXPECT_EQ(std::filesystem::last_write_time(kept), written);
  std::ofstream(kept) << "{";
  trust(at::kCPU, "aten", folder.path());
  EXPECT_GT(std::filesystem::file_size(kept), 1000U);
  EXPECT_EQ(proofs(), 1);
}

// What each kernel does right alone, and a whole model does not: a cache that is read where another layer writes.
TEST(Proof, AModelThatIsWrongIsNamed) {
  using namespace model::kernel;
  Backend mutant = cpu::backend();
  mutant.attention.paged = [](const at::Tensor& qkv, const PagedPlan& plan, const AttentionShape& shape, const PagedCache& cache) {
    at::Tensor o = cpu::backend().attention.paged(qkv, plan, shape, cache);
    return plan.tokens.positions_T.numel() == 1 && plan.tokens.positions_T.item<int64_t>() > 40 ? o * 0.5 : o;
  };
  const std::vector<Check> checks = checks_of_models(mutant, at::kCPU);
  EXPECT_EQ(num_wrong(checks, "model qwen2 float32: log-probabilities of the answer"), 1);
  EXPECT_EQ(num_wrong(checks, "losses"), 0);
}

// Two bits less of what attention gives are within any fixed limit, and more than the processor's rounding.
TEST(Proof, AModelThatRoundsMoreThanTheProcessorIsNamed) {
  using namespace model::kernel;
  Backend mutant = cpu::backend();
  mutant.attention.packed = [](const AttentionRows& in, const PackedPlan& plan, const AttentionShape& shape, at::Tensor* lse) {
    const at::Tensor o = cpu::backend().attention.packed(in, plan, shape, lse);
    return o.scalar_type() == at::kBFloat16 ? o.view(at::kShort).bitwise_and(~3).view(at::kBFloat16) : o;
  };
  const std::vector<Check> checks = checks_of_models(mutant, at::kCPU);
  EXPECT_EQ(num_wrong(checks, "model llama bfloat16: mean error of log-probabilities"), 1);
  EXPECT_EQ(num_wrong(checks, "model llama bfloat16: log-probabilities"), 0);
}

// Equal numbers are computed faster than those of a model.
TEST(Speed, IsMeasuredOnNumbersThatDiffer) {
  using namespace model::kernel;
  static std::vector<at::Tensor> factors;
  Backend watched = cpu::backend();
  watched.product.forward = [](const Numerics& numerics, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
    if (factors.empty()) factors = {x, w};
    cpu::backend().product.forward(numerics, out, x, w);
  };
  std::vector<Check> checks;
  measure_speed(watched, at::kCPU, [&](const Check& check) { checks.push_back(check); });
  ASSERT_EQ(factors.size(), 2U);
  for (const at::Tensor& each : factors) EXPECT_NEAR(each.to(at::kFloat).std().item<float>(), 1, 0.01);
  EXPECT_FALSE(factors[0].equal(factors[1]));
  factors.clear();
  const auto step = std::ranges::find(checks, "speed: a training step", &Check::name);
  ASSERT_NE(step, checks.end());
  const size_t needed = step->detail.find("TFLOP/s needed"), by_verl = step->detail.find("by verl's formula");
  EXPECT_LT(needed, by_verl) << step->detail;
  EXPECT_NE(by_verl, std::string::npos) << step->detail;
}

// A graph that is replayed on the blocks and positions of its first step.
TEST(Proof, AStaleInputOfAGraphIsNamed) {
  model::kernel::Backend mutant = model::kernel::aten::backend();
  mutant.attention.refill = [](model::kernel::PagedPlan& plan, const model::kernel::PagedTokens& tokens) {
    static std::set<const void*> filled;
    if (tokens.sequence_T.numel() > 1 && !filled.insert(&plan).second) return;
    model::kernel::aten::backend().attention.refill(plan, tokens);
  };
  const std::vector<Check> checks = checks_of_models(mutant, device_to_prove("fake"));
  EXPECT_EQ(num_wrong(checks, "llama float32: answers by graphs"), 1);
  EXPECT_EQ(num_wrong(checks, "losses"), 0);
}

}  // namespace
}  // namespace tandem::doctor
