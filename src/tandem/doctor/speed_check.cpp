// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/speed_check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"
#include "tandem/model/flops.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/rollout/engine.h"
#include "tandem/train/trainer.h"

namespace tandem::doctor {
namespace {

// What is measured, by kind of device.
struct Sizes {
  int64_t copy_bytes, product, prompt, answer, rows, row_tokens;
  model::ModelConfig model;
};

Sizes sizes_for(at::Device device) {
  const bool is_large = !device.is_cpu() && !device::backend_of(device).has_host_memory;
  Sizes s = is_large ? Sizes{int64_t{1} << 30, 8192, 128, 64, 16, 1024, {}} : Sizes{int64_t{64} << 20, 1024, 32, 16, 8, 128, {}};
  model::ModelConfig& c = s.model;
  c.family = "qwen2";
  c.qkv_bias = c.tied_embeddings = true;
  c.vocab_size = is_large ? 151'936 : 8192;
  c.hidden_size = is_large ? 896 : 256;
  c.intermediate_size = is_large ? 4864 : 768;
  c.num_layers = is_large ? 24 : 4;
  c.num_heads = is_large ? 14 : 4;
  c.num_kv_heads = 2;
  c.head_dim = 64;
  c.max_positions = 2048;
  return s;
}

// Seconds of one call once it is warm: the least of a few.
double seconds_of(at::Device device, const std::function<void()>& call) {
  double least = std::numeric_limits<double>::infinity();
  call();
  for (int turn = 0; turn < 4; ++turn) {
    device::synchronize(device);
    const double begin = now_s();
    call();
    device::synchronize(device);
    least = std::min(least, now_s() - begin);
  }
  return least;
}

std::string text(const char* format, double a, double b, double c = 0, double d = 0) {
  char line[160];
  std::snprintf(line, sizeof line, format, a, b, c, d);
  return line;
}

// N(0, 1): a device computes equal numbers faster than what a model has. So many differ, in an order that no row or tile repeats.
at::Tensor random_values(int64_t count, uint64_t stream, at::Device device) {
  constexpr int64_t kPrime = 1'000'003;
  const at::Tensor some = at::empty({std::min(count, kPrime)}, at::kFloat);
  RandomStream random(2, stream);
  for (float& value : std::span(some.data_ptr<float>(), static_cast<size_t>(some.numel()))) value = static_cast<float>(random.normal());
  return at::cat(std::vector(static_cast<size_t>((count + kPrime - 1) / kPrime), some.to(device))).narrow(0, 0, count);
}

double copied_bytes_per_s(const Sizes& s, at::Device device) {
  const at::Tensor from = random_values(s.copy_bytes / 4, 1, device);
  at::Tensor to = at::empty_like(from);
  return 2.0 * static_cast<double>(s.copy_bytes) / seconds_of(device, [&] { to.copy_(from); });
}

double product_flops_per_s(const Sizes& s, const model::kernel::Kernels& kernels) {
  const auto square = [&](uint64_t stream) {
    return random_values(s.product * s.product, stream, kernels.device()).view({s.product, s.product}).to(kernels.dtype());
  };
  const at::Tensor x = square(2), w = square(3);
  at::Tensor out = at::empty_like(x);
  const double n = static_cast<double>(s.product);
  return 2 * n * n * n / seconds_of(kernels.device(), [&] { kernels.forward(out, x, w); });
}

// Seconds of a step in which each sequence gets one token.
double decode_step_s(const Sizes& s, const model::ModelOnRank& model, device::Arena& arena, int64_t batch) {
  rollout::Options options;
  options.max_running = batch;
  options.prefill_tokens = batch * s.prompt;
  rollout::Engine engine(options, {model.decoder(), arena, s.model.vocab_size, s.prompt + s.answer});
  engine.switch_weights(model.parameters(), data::PolicyVersion{0});
  RandomStream random(3, static_cast<uint64_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    rollout::Request request;
    for (int64_t t = 0; t < s.prompt; ++t) request.prompt.push_back(static_cast<int32_t>(random.below(s.model.vocab_size)));
    request.sampling.max_new_tokens = s.answer;
    request.sampling.ignore_eos = true;
    engine.submit(std::move(request));
  }
  for (int64_t step = 0; step < s.answer / 4; ++step) engine.step();  // the prompts, and graphs of a shape or two
  const double begin = now_s();
  int64_t steps = 0;
  for (; engine.running(); ++steps) engine.step();
  return (now_s() - begin) / static_cast<double>(std::max<int64_t>(steps, 1));
}

double train_step_s(const Sizes& s, model::ModelOnRank& model, device::Arena& arena, device::Arena& host, comm::Group& alone) {
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(s.rows));
  std::vector<train::Row> rows(ids.size());
  RandomStream random(4, 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t t = 0; t < s.row_tokens; ++t) ids[i].push_back(static_cast<int32_t>(random.below(s.model.vocab_size)));
    rows[i].prompt = std::span(ids[i]).first(1);
    rows[i].response = std::span(ids[i]).subspan(1);
  }
  train::Options options;
  options.micro_batch_tokens = 8 * s.row_tokens;
  train::Trainer trainer(options, {model.table(), model.decoder(), model.values(), train::Ranks::of_one(alone), arena, {}, 0, &host});
  trainer.start();
  double least = std::numeric_limits<double>::infinity();
  for (int step = 0; step < 3; ++step) {
    const double begin = now_s();
    (void)trainer.supervised_step(rows, 1e-6);
    device::synchronize(model.values().device());
    least = std::min(least, now_s() - begin);
  }
  return least;
}

}  // namespace

void measure_speed(const model::kernel::Backend& backend, at::Device device, const Told& told) {
  const Sizes s = sizes_for(device);
  try {
    const model::kernel::Kernels kernels(backend, at::kBFloat16, backend.product.plain_choice(at::kBFloat16), device);
    const double copied = copied_bytes_per_s(s, device), multiplied = product_flops_per_s(s, kernels);
    const auto mib = static_cast<double>(s.copy_bytes >> 20), side = static_cast<double>(s.product);
    told({"speed: a copy", true, text("%.1f GB/s read and written, of %.0f MiB", copied / 1e9, mib)});
    told({"speed: a product, bfloat16", true, text("%.2f TFLOP/s, of %.0f rows and columns", multiplied / 1e12, side)});
    device::Arena arena("device", 0, device), host("host");
    const std::unique_ptr<comm::Group> alone = comm::single();
    model::ModelOnRank model(s.model, {}, kernels, {arena, "weights"});
    model.values().copy_(at::sin(at::arange(model.values().numel(), model.values().options().dtype(at::kFloat))).mul_(0.03));
    for (const int64_t batch : {1, 64}) {
      const double step = decode_step_s(s, model, arena, batch), bytes = static_cast<double>(model.values().nbytes()) / step;
      told({"speed: a decode step of " + std::to_string(batch), true,
                          text("%.3f ms, the weights at %.1f GB/s: %.0f %% of the copy", 1e3 * step, bytes / 1e9, 100 * bytes / copied)});
    }
    model::TokenWork work;
    for (int64_t i = 0; i < s.rows; ++i) work.add(s.row_tokens);
    const double step = train_step_s(s, model, arena, host, *alone);
    const double needed = model::needed_flops(s.model, work, work.tokens - static_cast<double>(s.rows)) / step;
    told({"speed: a training step", true,
          text("%.1f ms, %.2f TFLOP/s needed: %.0f %% of the product; %.2f by verl's formula, which counts the embedding as a product",
               1e3 * step, needed / 1e12, 100 * needed / multiplied, model::training_flops(s.model, work) / step / 1e12)});
  } catch (const std::exception& e) {
    told({"speed: runs", false, said_by(e)});
  }
}

}  // namespace tandem::doctor
