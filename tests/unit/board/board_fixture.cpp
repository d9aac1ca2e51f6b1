// SPDX-License-Identifier: Apache-2.0
// board_fixture RUN_DIR STEPS MILLISECONDS_PER_STEP: grows a made-up run through the real sinks and serves its page. Prints
// the address, serves until standard input ends.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/board/server.h"
#include "tandem/data/sample_store.h"
#include "tandem/monitor/jsonl_sink.h"
#include "tandem/monitor/tensorboard_sink.h"
#include "tandem/monitor/trace_sink.h"

namespace tandem {
namespace {

constexpr int kGroups = 12, kGroupSize = 8;

void record_metrics(monitor::Recorder& recorder, int64_t step, double skill, RandomStream& noise) {
  const auto near = [&](double value, double spread) { return value + spread * noise.normal(); };
  recorder.set("policy_version", static_cast<double>(step));
  recorder.set("reward/mean", near(skill, 0.03));
  recorder.set("reward/std", 0.3);
  recorder.set("reward/answer", near(skill * 0.9, 0.03));
  recorder.set("reward/format", near(std::min(1.0, skill + 0.2), 0.02));
  recorder.set("actor/loss", near(0, 0.01));
  recorder.set("actor/grad_norm", std::abs(near(0.8, 0.2)));
  recorder.set("actor/lr", 1e-4 * std::min(1.0, static_cast<double>(step) / 10));
  recorder.set("actor/entropy", 1.6 - skill);
  recorder.set("actor/clip_fraction", std::abs(near(0.02, 0.01)));
  recorder.set("actor/kl_ref", 0.05 * skill);
  recorder.set("actor/kl_rollout_train", std::abs(near(4e-6, 1e-6)));
  recorder.set("data/response_tokens_mean", near(40 + 60 * skill, 4));
  recorder.set("data/response_tokens_max", near(150, 15));
  recorder.set("data/truncated_fraction", std::abs(near(0.05, 0.02)));
  recorder.set("staleness/lag_mean", std::abs(near(0.8, 0.2)));
  recorder.set("staleness/lag_max", step % 5 ? 1 : 2);
  recorder.set("throughput/tokens_per_s", near(5200, 250));
  recorder.set("throughput/rollout_tokens_per_s", near(7600, 400));
  recorder.set("throughput/train_tokens_per_s", near(15500, 600));
  for (const auto& [name, seconds] : {std::pair{"rollout", 1.1}, {"reward", 0.05}, {"train", 0.5}, {"switch", 0.08}, {"wait", 0.1}})
    recorder.add(std::string("time/") + name + "_s", std::abs(near(seconds, seconds * 0.1)));
  recorder.set("time/step_s", near(1.85, 0.1));
  recorder.set("memory/peak_bytes", 1.6e9);
  for (const auto& [owner, bytes] : {std::pair{"weights", 2.6e8}, {"grads", 2.6e8}, {"optimizer", 5.2e8}, {"kv_cache", 4.1e8}})
    recorder.set(std::string("memory/") + owner + "_bytes", bytes);
  recorder.set("queue/depth", std::floor(4 * noise.uniform()));
}

data::Batch make_batch(int64_t step, double skill, RandomStream& noise) {
  data::Batch batch{StepId{step}, PolicyVersion{step - 1}, {}};
  for (int64_t g = 0; g < kGroups; ++g) {
    data::Group group;
    group.id = GroupId{(step - 1) * kGroups + g};
    const int64_t a = 10 + noise.below(90), b = 10 + noise.below(90);
    group.prompt = {g, "Add the numbers. Think first, answer last.\n" + std::to_string(a) + " + " + std::to_string(b) + " = ?", {1, 2, 3},
                    std::to_string(a + b), "sums"};
    if (g == 0) group.prompt.text += " <img src=x onerror=\"window.tandemBroken=1\"><script>window.tandemBroken=1</script>";
    group.version = PolicyVersion{std::max<int64_t>(0, step - 1 - noise.below(3))};
    for (int i = 0; i < kGroupSize; ++i) {
      const bool right = noise.uniform() < skill;
      data::Sample sample;
      sample.id = data::sample_id(group.id, kGroupSize, i);
      sample.ids.assign(static_cast<size_t>(20 + noise.below(60)), 7);
      sample.versions.assign(sample.ids.size(), value(group.version));
      sample.versions.back() = step - 1;
      sample.logprobs.assign(sample.ids.size(), -0.5f);
      sample.finish = noise.uniform() < 0.1 ? data::FinishReason::kLength : data::FinishReason::kStop;
      sample.text = "<think>\n" + std::to_string(a) + " and " + std::to_string(b) + ": tens first, then ones.\n</think>\n<answer>" +
                    std::to_string(right ? a + b : a + b + 1 + noise.below(9)) + "</answer>";
      sample.score = right ? 1.0 : 0.1;
      sample.parts = {{"answer", right ? 1.0 : 0.0}, {"format", 1.0}};
      group.samples.push_back(std::move(sample));
    }
    batch.groups.push_back(std::move(group));
  }
  return batch;
}

std::vector<double> make_advantages(const data::Batch& batch) {
  std::vector<double> advantages;
  for (const auto& group : batch.groups) {
    double mean = 0;
    for (const auto& sample : group.samples) mean += sample.score / kGroupSize;
    for (const auto& sample : group.samples) advantages.push_back(sample.score - mean);
  }
  return advantages;
}

void grow(const std::string& folder, int64_t steps, int64_t pause_ms, const std::atomic<bool>& stop) {
  monitor::Recorder recorder;
  recorder.add_sink(std::make_unique<monitor::JsonlSink>(folder + "/metrics.jsonl"));
  recorder.add_sink(std::make_unique<monitor::TensorBoardSink>(folder + "/tensorboard"));
  recorder.add_sink(std::make_unique<monitor::TraceSink>(folder + "/trace.json"));
  data::SampleStore store(folder + "/samples.sqlite");
  RandomStream noise(7, 0);
  const auto skill_at = [&](double step) { return 0.15 + 0.75 * (1 - std::exp(-3.0 * step / static_cast<double>(steps))); };
  for (int64_t step = 1; step <= steps && !stop; ++step) {
    monitor::ScopedSpan span(recorder, "step", "run");
    const double skill = skill_at(static_cast<double>(step));
    record_metrics(recorder, step, skill, noise);
    if (step % 10 == 1 || step == steps) {
      recorder.set("eval/accuracy", skill);
      std::vector<data::EvalAnswer> answers;
      for (int64_t row = 0; row < 40; ++row) {
        const std::string sum = std::to_string(row + 2);
        const bool right = noise.uniform() < skill;
        answers.push_back({row, "2 + " + std::to_string(row) + " = ?", sum, right ? sum : "not sure", right ? 1.0 : 0.0});
      }
      store.append_evals(StepId{step}, answers);
    }
    const data::Batch batch = make_batch(step, skill, noise);
    store.append(batch, make_advantages(batch));
    recorder.commit_step(step);
    recorder.flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  if (stop) return;
  std::ofstream summary(folder + "/summary.json");
  summary << R"({"eval_before":{"accuracy":0.15},"eval_after":{"accuracy":)" << skill_at(static_cast<double>(steps));
  summary << R"(},"steps":)" << steps << R"(,"seconds":)" << 1.85 * static_cast<double>(steps) << R"(,"tokens":1234567})";
}

int run(const std::vector<std::string>& args) {
  const std::string folder = args.at(0);
  const int64_t steps = std::stoll(args.at(1));
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.yaml") << "model:\n  path: tiny\nsteps: " << steps << "\nalgorithm: grpo\ngroup_size: 8\n";
  board::Server server(folder, 0);
  std::atomic<bool> stop = false;
  std::thread serving([&] { server.run(stop); });
  std::thread growing([&] { grow(folder, steps, std::stoll(args.at(2)), stop); });
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  stop = true;
  growing.join();
  serving.join();
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return tandem::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "board_fixture: error: %s\n", error.what());
    return 1;
  }
}
