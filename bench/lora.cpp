// SPDX-License-Identifier: Apache-2.0
// lora_bench MODEL ADAPTER ROWS [SEQUENCES...]: what rollout makes of adapters in bfloat16, beside what training makes of them. ROWS has
// {"prompt_ids": [], "response_ids": []} a line. Prints JSON, a line for
// the first three and one for each number of sequences:
//   nll        mean over the response tokens: of the start, of the training pass (trained), of what rollout runs (generates), of the
//              matrices with the adapters merged into bfloat16 (merged, for comparison); in fp32, of the start and of the merged (hf).
//              gain_kept compares like with like: generates and merged with the start in bfloat16, hf with the start in fp32
//   gap        mean distance of the log-probabilities of rollout and training: as above, and with adapters of zeros (floor)
//   decode     tokens/s by sequences that run together: with the adapters, and merged; medians of repeats in turns
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/checkpoint/safetensors.h"
#include "tandem/device/process.h"
#include "tandem/model/lora.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/rollout/group/group_assembly.h"
#include "tandem/train/trainer.h"

namespace {

using namespace tandem;
using nlohmann::json;

constexpr int64_t kBlockTokens = 16;
constexpr int kRepeats = 7;

struct Texts {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<train::Row> rows;
};

Texts read_texts(const std::string& path) {
  Texts texts;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const json row = json::parse(line);
    texts.prompts.push_back(row.at("prompt_ids"));
    texts.responses.push_back(row.at("response_ids"));
  }
  for (size_t i = 0; i < texts.prompts.size(); ++i) texts.rows.push_back({.prompt = texts.prompts[i], .response = texts.responses[i]});
  return texts;
}

using Logprobs = std::vector<std::vector<float>>;

struct Loaded {
  device::Arena arena{"device", 0};
  model::kernel::Kernels kernels;
  model::ModelOnRank model;

  Loaded(const std::string& dir, at::ScalarType dtype)
      : kernels(model::kernel::cpu::backend(), dtype, false), model(model::read_config(dir), {}, kernels, {arena, "weights"}) {
    model.load(dir);
  }
};

model::LoraOptions options_of(const std::string& adapter) {
  const json j = json::parse(read_file(adapter + "/adapter_config.json"));
  return {j.at("r"), j.at("lora_alpha"), j.at("target_modules")};
}

void read_adapters(const std::string& dir, model::Lora& lora) {
  const checkpoint::SafetensorsFile file(dir + "/adapter_model.safetensors");
  for (const model::ParameterEntry& e : lora.table().entries) lora.table().view(lora.values(), e).copy_(file.view(e.parameter.name));
  lora.refresh();
}

void merge(Loaded& loaded, const model::LoraOptions& options, const model::Lora& lora) {
  auto next = lora.table().entries.begin();
  for (const model::ParameterEntry& e : loaded.model.table().entries) {
    if (!model::is_adapted(e.parameter, options)) continue;
    const at::Tensor a = lora.table().view(lora.values(), *next++), b = lora.table().view(lora.values(), *next++);
    const at::Tensor w = loaded.model.table().view(loaded.model.values(), e);
    w.copy_(model::merged_matrix(w, a, b, options.scale()));
  }
}

Logprobs by_training(const Loaded& loaded, const model::ModelParameters& parameters, const Texts& texts) {
  return train::score(loaded.model.decoder(), parameters, texts.rows, 1.0, 4096);
}

// As an engine runs them: paged attention, packed products.
Logprobs by_rollout(Loaded& loaded, const model::ModelParameters& parameters, const Texts& texts) {
  at::NoGradGuard no_grad;
  size_t longest = 0;
  for (const train::Row& row : texts.rows) longest = std::max(longest, row.prompt.size() + row.response.size());
  rollout::Options options;
  options.max_running = 1, options.kv_block_tokens = kBlockTokens;
  rollout::Runner runner(options, loaded.model.decoder(), loaded.arena);
  runner.take_weights(parameters);
  runner.open_cache(static_cast<int64_t>(longest));
  std::vector<int32_t> blocks(static_cast<size_t>(runner.num_blocks()));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  Logprobs all;
  for (const train::Row& row : texts.rows) {
    rollout::Plan plan;
    plan.ids.assign(row.prompt.begin(), row.prompt.end());
    plan.ids.insert(plan.ids.end(), row.response.begin(), row.response.end() - 1);
    plan.runs.push_back({.sequence = {}, .begin = 0, .count = std::ssize(plan.ids), .position = 0, .blocks = blocks, .starts = true});
    const auto first = std::ssize(row.prompt) - 1;
    for (int64_t i = 0; i < std::ssize(row.response); ++i) plan.rows.push_back(first + i);
    const at::Tensor said = at::log_softmax(runner.run(plan, false).logits_SRV[0], -1);
    std::vector<float>& out = all.emplace_back();
    for (size_t i = 0; i < row.response.size(); ++i) out.push_back(said[static_cast<int64_t>(i)][row.response[i]].item<float>());
  }
  return all;
}

template <class F>
double mean(const Logprobs& a, const Logprobs& b, F of) {
  double sum = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t t = 0; t < a[i].size(); ++t) sum += of(a[i][t], b[i][t]), n += 1;
  return sum / n;
}
double nll(const Logprobs& a) { return -mean(a, a, [](double x, double) { return x; }); }
double gap(const Logprobs& a, const Logprobs& b) { return mean(a, b, [](double x, double y) { return std::abs(x - y); }); }

double decode_tokens_per_s(Loaded& loaded, const model::ModelParameters& parameters, int64_t sequences) {
  constexpr int64_t kPrompt = 32, kNew = 32;
  rollout::Options options;
  options.max_running = sequences, options.kv_block_tokens = kBlockTokens;
  rollout::Engine engine(options, {loaded.model.decoder(), loaded.arena, loaded.model.config().vocab_size, kPrompt + kNew});
  engine.switch_weights(parameters, data::PolicyVersion{0});
  rollout::GroupAssembly groups(engine);
  for (int64_t i = 0; i < sequences; ++i) {
    rollout::GroupRequest request;
    request.group.id = data::GroupId{i};
    for (int64_t t = 0; t < kPrompt; ++t) request.group.prompt.ids.push_back(static_cast<int32_t>(10 + (i * 7919 + t * 104729) % 40000));
    request.first_sample = i;
    request.sampling.max_new_tokens = kNew, request.sampling.ignore_eos = true;
    groups.admit(std::move(request));
  }
  while (engine.counts().drawn < sequences) engine.step(), (void)groups.finished();
  const double begin = now_s();
  const int64_t before = engine.counts().drawn;
  while (engine.running()) engine.step(), (void)groups.finished();
  return static_cast<double>(engine.counts().drawn - before) / (now_s() - begin);
}

void decode(Loaded& adapted, const model::ModelParameters& parameters, Loaded& merged, const std::vector<int64_t>& numbers) {
  for (const int64_t sequences : numbers) {
    std::vector<double> with, without;
    for (int i = 0; i <= kRepeats; ++i) {
      const double a = decode_tokens_per_s(adapted, parameters, sequences);
      const double m = decode_tokens_per_s(merged, merged.model.parameters(), sequences);
      if (i > 0) with.push_back(a), without.push_back(m);  // the first warms up
    }
    std::ranges::sort(with), std::ranges::sort(without);
    const double a = with[kRepeats / 2], m = without[kRepeats / 2];
    std::cout << json({{"sequences", sequences}, {"adapters_tok_s", a}, {"merged_tok_s", m}, {"slower", 1 - a / m}}) << std::endl;
  }
}

void measure(const std::string& dir, const std::string& adapter, const std::string& rows, const std::vector<int64_t>& numbers) {
  device::set_compute_threads(device::num_cores());
  const Texts texts = read_texts(rows);
  const model::LoraOptions options = options_of(adapter);
  Loaded half(dir, at::kBFloat16), merged(dir, at::kBFloat16), single(dir, at::kFloat);
  model::Lora lora(half.model.table(), options, half.model.values(), half.arena);
  read_adapters(adapter, lora);
  const model::ModelParameters adapted = lora.adapted();
  const model::Lora zeros(half.model.table(), options, half.model.values(), half.arena);
  const Logprobs start = by_training(half, zeros.adapted(), texts), floor = by_rollout(half, zeros.adapted(), texts);
  const Logprobs plain = by_rollout(half, half.model.parameters(), texts);
  const Logprobs trained = by_training(half, adapted, texts), generates = by_rollout(half, adapted, texts);
  const Logprobs start_fp32 = by_training(single, single.model.parameters(), texts);
  merge(merged, options, lora), merge(single, options, lora);
  const Logprobs lost = by_rollout(merged, merged.model.parameters(), texts);
  const Logprobs hf = by_training(single, single.model.parameters(), texts);
  const auto kept = [&](const Logprobs& from, const Logprobs& to) { return (nll(from) - nll(to)) / (nll(start) - nll(trained)); };
  json out = {{"rows", texts.rows.size()}, {"rank", options.rank}, {"targets", options.targets}};
  out["nll"] = {{"start", nll(start)}, {"trained", nll(trained)}, {"generates", nll(generates)}, {"merged", nll(lost)}};
  out["nll_fp32"] = {{"start", nll(start_fp32)}, {"hf", nll(hf)}};
  out["gain_kept"] = {{"generates", kept(start, generates)}, {"merged", kept(start, lost)}, {"hf", kept(start_fp32, hf)}};
  const double least = gap(start, floor), now = gap(trained, generates), least_before = gap(start, plain), before = gap(trained, lost);
  out["gap"] = {{"floor", least}, {"generates", now}, {"floor_merged", least_before}, {"merged", before}};
  out["excess_of_merged"] = (now - least) / (before - least_before);
  std::cout << out << std::endl;
  decode(half, adapted, merged, numbers);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: lora_bench MODEL ADAPTER ROWS [SEQUENCES...]\n";
    return 2;
  }
  try {
    device::tune_allocator();
    std::vector<int64_t> numbers;
    for (int i = 4; i < argc; ++i) numbers.push_back(std::stoll(argv[i]));
    if (numbers.empty()) numbers = {1, 8, 64, 128};
    measure(argv[1], argv[2], argv[3], numbers);
  } catch (const std::exception& e) {
    std::cerr << "lora_bench: " << e.what() << '\n';
    return 2;
  }
}
