// SPDX-License-Identifier: Apache-2.0
// The score head under tensor parallelism: whole on every rank, with the scores and gradients of one rank.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "../tiny_model.h"
#include "tandem/base/check.h"
#include "tandem/device/process.h"

namespace tandem::model {
namespace {

struct Result {
  at::Tensor scores;
  std::map<std::string, at::Tensor> grads;  // whole, by name
};

// The gradient of the squared scores of every token, as a value model has them.
Result run(const ModelConfig& config, int tp) {
  const Layout layout{1, tp};
  const std::vector<int64_t> lengths = {9, 14};
  Result result;
  std::mutex mutex;
  comm::run_local(tp, 60, [&](comm::Group& world) {
    device::set_compute_threads(1);
    const at::Device device = test::device_under_test(world.rank());
    const kernel::Kernels kernels(test::backend_under_test(device), at::kFloat, kernel::GemmChoice{}, device);
    const ParameterTable table = parameter_table(config, layout, world.rank());
    at::Tensor values = at::zeros({table.num_elements}, kernels.options(at::kFloat)), grads = at::zeros_like(values);
    initialize_parameters(table, values, 9, 0.3);
    const ModelParameters parameters = make_parameters(table, values, grads);
    const Decoder decoder(config, kernels, {layout, world.rank(), tp > 1 ? &world : nullptr});
    const at::Tensor ids = at::arange(23, at::kLong) * 5 % 64, positions = at::cat({at::arange(9, at::kLong), at::arange(14, at::kLong)});
    PackedContext context(kernels, kernel::stems(lengths));
    const at::Tensor scores = decoder.scores(parameters, decoder.forward(parameters, {ids, positions, {}, {}, {}}, context)).cpu();
    scores.pow(2).sum().backward();
    std::lock_guard lock(mutex);
    if (result.scores.defined()) {
      EXPECT_TRUE(at::equal(result.scores, scores.detach())) << "ranks have other scores";
    }
    result.scores = scores.detach();
    for (const ParameterEntry& e : table.entries) {
      at::Tensor& whole = result.grads[e.parameter.name];
      if (!whole.defined()) whole = at::zeros(e.parameter.shape);
      at::Tensor part = whole;
      for (size_t d = 0; d < e.box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), e.box.begin[d], e.box.extent(d));
      part.add_(table.view(grads, e).cpu());  // what several ranks hold has a part of its gradient on each
    }
  });
  return result;
}

TEST(ScoreLayout, TensorParallelRanksHaveTheScoresAndGradientsOfOne) {
  for (const char* family : {"qwen2", "qwen3"}) {
    ModelConfig config = test::config_of(family, 2);
    config.num_labels = 2;
    config.vocab_size = 65;
    const Result want = run(config, 1), got = run(config, 2);
    ASSERT_TRUE(want.grads.contains("score.weight"));
    EXPECT_LE((got.scores - want.scores).abs().max().item<double>(), 1e-5) << family;
    for (const auto& [name, grad] : want.grads)
      EXPECT_LE((got.grads.at(name) - grad).abs().max().item<double>(), 1e-4 * grad.abs().max().item<double>()) << family << " " << name;
  }
}

}  // namespace
}  // namespace tandem::model
