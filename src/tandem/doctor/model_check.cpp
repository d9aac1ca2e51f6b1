// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/model_check.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tandem/base/check.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/family/tiny_config.h"
#include "tandem/rollout/decode_graph.h"
#include "tandem/rollout/engine.h"
#include "tandem/train/trainer.h"

namespace tandem::doctor {
namespace {

// Their vocabulary is no multiple of any tile.
std::vector<model::ModelConfig> fixtures() {
  std::vector<model::ModelConfig> all = {model::config_of("llama", 2, 2), model::config_of("qwen2", 2, 2), model::config_of("qwen3", 2, 2),
                                         model::experts_config("qwen3_moe", 2), model::experts_config("deepseek_v3", 2)};
  for (model::ModelConfig& c : all) c.vocab_size = 97, c.tied_embeddings = c.family == "qwen2", c.eos_ids.clear();
  return all;
}

// Prompts and answers of odd lengths; the first two share their prompt.
struct Texts {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<train::Row> rows;

  explicit Texts(int64_t vocab_size) {
    RandomStream random(5, 3);
    const auto some = [&](int64_t n) {
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random.below(vocab_size)));
      return ids;
    };
    for (const auto& [prompt, response] : {std::pair<int64_t, int64_t>{9, 7}, {9, 13}, {1, 21}, {37, 1}}) {
      prompts.push_back(prompts.size() == 1 ? prompts[0] : some(prompt));
      responses.push_back(some(response));
    }
    rows.resize(prompts.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i].prompt = prompts[i], rows[i].response = responses[i];
  }
};

// What a model does with the texts, on one side.
struct Done {
  std::vector<float> scored, trained, generated;  // log-probabilities: before, after two steps, and of the greedy answer
  std::vector<int32_t> answer;
  std::vector<double> losses, norms;
  at::Tensor weights;  // after the steps, on the host
};

std::vector<float> flat(const std::vector<std::vector<float>>& rows) {
  std::vector<float> all;
  for (const std::vector<float>& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

// Greedy answers of a few tokens each, the later ones a little longer, in the order of the prompts.
std::vector<data::Sample> greedy(const model::ModelOnRank& model, device::Arena& arena, std::span<const std::vector<int32_t>> prompts,
                                 bool graphs) {
  rollout::Options options;
  options.prefill_tokens = 16;
  options.max_running = std::ssize(prompts) + 1;
  options.graphs = graphs;
  rollout::Engine engine(options, {model.decoder(), arena, model.config().vocab_size, 64});
  engine.switch_weights(model.parameters(), data::PolicyVersion{0});
  for (size_t i = 0; i < prompts.size(); ++i) {
    rollout::Request request;
    request.prompt = prompts[i];
    request.sample = data::SampleId{static_cast<int64_t>(i)};
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = 12 + static_cast<int64_t>(i);
    engine.submit(std::move(request));
  }
  while (engine.running()) engine.step();
  std::vector<data::Sample> samples;
  for (const rollout::Completion& each : engine.completed()) samples.push_back(each.sample);
  std::ranges::sort(samples, {}, &data::Sample::id);
  return samples;
}

// `rounds`: weights that bfloat16 can hold, whatever computes with them.
Done run(const model::ModelConfig& config, const model::kernel::Kernels& kernels, bool rounds) {
  device::Arena arena("device", 0, kernels.device()), host("host");
  const std::unique_ptr<comm::Group> alone = comm::single();
  model::ModelOnRank model(config, {}, kernels, {arena, "weights"});
  model::initialize_parameters(model.table(), model.values(), 7, 0.1);
  if (rounds && kernels.dtype() == at::kFloat) model.values().copy_(model.values().to(at::kBFloat16));
  const Texts texts(config.vocab_size);
  Done done;
  const auto score = [&] { return flat(train::score(model.decoder(), model.parameters(), texts.rows, 0.8, 64)); };
  done.scored = score();
  const data::Sample sample = greedy(model, arena, std::span(texts.prompts).subspan(3), true).at(0);
  done.answer = sample.ids;
  done.generated = sample.logprobs;
  train::Options options;
  options.micro_batch_tokens = 64;
  train::Trainer trainer(options, {model.table(), model.decoder(), model.values(), train::Ranks::of_one(*alone), arena, {}, 0, &host});
  trainer.start();
  for (int step = 0; step < 2; ++step) {
    const train::StepReport report = trainer.supervised_step(texts.rows, 1e-3);
    done.losses.push_back(report.loss), done.norms.push_back(report.grad_norm);
  }
  done.trained = score();
  done.weights = model.values().cpu();
  return done;
}

// The largest error(a[i], b[i]), or infinity where lengths differ.
template <class Number>
double largest(const std::vector<Number>& a, const std::vector<Number>& b, double (*error)(double, double)) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = error(a[i], b[i]);
    most = std::isfinite(d) ? std::max(most, d) : INFINITY;
  }
  return most;
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return largest(a, b, [](double x, double y) { return std::abs(x - y); });
}
double mean_distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i]) - b[i]);
  return sum / static_cast<double>(a.size());
}
double ratio_error(const std::vector<double>& a, const std::vector<double>& b) {
  return largest(a, b, [](double x, double y) { return std::abs(x / y - 1); });
}

Check within(const std::string& name, double error, double allowed) {
  return {name, error <= allowed, join_text("off by ", error, ", allowed ", allowed)};
}

// Where steps of decoding are captured: several sequences of odd numbers of tokens, against the same device without graphs.
void check_graphs(const std::string& name, const model::ModelConfig& config, const model::kernel::Kernels& kernels, double allowed,
                  const Told& told) {
  device::Arena arena("device", 0, kernels.device());
  model::ModelOnRank model(config, {}, kernels, {arena, "weights"});
  if (!rollout::DecodeGraphs::serves(model.decoder())) return;
  model::initialize_parameters(model.table(), model.values(), 7, 0.1);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 5; ++i) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (size_t t = 0; t < 3 + 7 * i; ++t) prompt.push_back(static_cast<int32_t>((11 * t + 5 * i) % 90 + 2));
  }
  std::vector<int32_t> ids[2];
  std::vector<float> logprobs[2];
  for (const bool graphs : {false, true})
    for (const data::Sample& sample : greedy(model, arena, prompts, graphs)) {
      ids[graphs].insert(ids[graphs].end(), sample.ids.begin(), sample.ids.end());
      logprobs[graphs].insert(logprobs[graphs].end(), sample.logprobs.begin(), sample.logprobs.end());
    }
  told({name + "answers by graphs", ids[0] == ids[1], "token by token, against the same without"});
  told(within(name + "log-probabilities by graphs", distance(logprobs[0], logprobs[1]), allowed));
}

// Log-probabilities of some thousand tokens, of weights that bfloat16 can hold.
std::vector<float> log_probabilities(const model::ModelConfig& config, const model::kernel::Kernels& kernels) {
  constexpr size_t kRows = 128;
  constexpr int64_t kTokens = 48;
  device::Arena arena("device", 0, kernels.device());
  model::ModelOnRank model(config, {}, kernels, {arena, "weights"});
  model::initialize_parameters(model.table(), model.values(), 7, 0.1);
  model.values().copy_(model.values().to(at::kBFloat16));
  RandomStream random(6, 1);
  std::vector<std::vector<int32_t>> ids(kRows);
  std::vector<train::Row> rows(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    for (int64_t t = 0; t < kTokens; ++t) ids[i].push_back(static_cast<int32_t>(random.below(config.vocab_size)));
    rows[i].prompt = std::span(ids[i]).first(1);
    rows[i].response = std::span(ids[i]).subspan(1);
  }
  return flat(train::score(model.decoder(), model.parameters(), rows, 1.0, 1024));
}

// Two that round differently are each as far from the truth as from each other: so each is judged against fp32.
void check_rounding(const std::string& name, const model::ModelConfig& config, const model::kernel::Kernels& kernels, const Told& told) {
  constexpr double kNoWorse = 1.1;
  const auto own = [&](c10::ScalarType dtype) {
    const model::kernel::Backend& backend = model::kernel::cpu::backend();
    return log_probabilities(config, {backend, dtype, backend.product.plain_choice(dtype)});
  };
  const std::vector<float> exact = own(at::kFloat);
  const double here = mean_distance(own(at::kBFloat16), exact), there = mean_distance(log_probabilities(config, kernels), exact);
  told({name + "mean error of log-probabilities", there <= kNoWorse * here,
        join_text("off by ", there, " from float32, the processor's bfloat16 by ", here, "; allowed ", kNoWorse, " times as much")});
}

void check_model(const model::ModelConfig& config, const model::kernel::Kernels& kernels, const Told& told) {
  const bool half = kernels.dtype() == at::kBFloat16;
  const std::string name = join_text("model ", config.family, half ? " bfloat16: " : " float32: ");
  const double allowed = half ? 5e-2 : 2e-4, of_gradient = half ? 5e-2 : 1e-3;
  try {
    const model::kernel::Kernels own(model::kernel::cpu::backend(), at::kFloat, model::kernel::GemmChoice{});
    const Done want = run(config, own, half), got = run(config, kernels, half), again = run(config, kernels, half);
    // Where two experts are worth the same to bfloat16, a token may go to another one: then tokens are compared on average.
    const auto off = half && config.moe.num_experts > 0 ? mean_distance : distance;
    told(within(name + "log-probabilities", off(got.scored, want.scored), allowed));
    told(within(name + "losses", ratio_error(got.losses, want.losses), of_gradient));
    told(within(name + "gradient norms", ratio_error(got.norms, want.norms), of_gradient));
    told(within(name + "log-probabilities after two steps", off(got.trained, want.trained), 2 * allowed));
    if (!half) told({name + "greedy answer", got.answer == want.answer, "token by token"});
    if (half) told({name + "greedy answer", got.answer.size() == want.answer.size(), "its length"});
    else told(within(name + "log-probabilities of the answer", distance(got.generated, want.generated), allowed));
    told({name + "the same bits again", at::equal(got.weights, again.weights) && got.generated == again.generated,
                      "weights after two steps, and the answer"});
    if (half) check_rounding(name, config, kernels, told);
    else check_graphs(name, config, kernels, allowed, told);
  } catch (const std::exception& e) {
    told({name + "runs", false, said_by(e)});
  }
}

}  // namespace

void check_models(const model::kernel::Backend& backend, at::Device device, const Told& told) {
  for (const model::ModelConfig& config : fixtures())
    for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
      check_model(config, model::kernel::Kernels(backend, dtype, backend.product.plain_choice(dtype), device), told);
}

}  // namespace tandem::doctor
