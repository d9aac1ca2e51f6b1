// SPDX-License-Identifier: Apache-2.0
// board_fixture grow RUN_DIR STEPS MILLISECONDS_PER_STEP finish|fail: grows a made-up run through the real sinks, and ends it so.
// board_fixture serve RUN_DIR: serves its page. Prints the address, serves until standard input ends.
#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/rng.h"
#include "tandem/board/server.h"
#include "tandem/data/sample_store.h"
#include "tandem/monitor/jsonl_sink.h"
#include "tandem/monitor/tensorboard_sink.h"
#include "tandem/monitor/timeline_sink.h"
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
  for (const auto& [name, seconds] :
       {std::pair{"rollout", 1.1}, {"reward", 0.05}, {"train", 0.5}, {"switch", 0.08}, {"wait", 0.1}, {"reference", 0.3}, {"values", 0.2},
        {"old_logprob", 0.3}, {"train_critic", 0.4}, {"advantage", 0.1}, {"meet", 0.1}, {"ahead", 0.2}, {"save", 0.1}, {"export", 0.1}})
    recorder.add(std::string("time/") + name + "_s", std::abs(near(seconds, seconds * 0.1)));
  recorder.set("time/step_s", near(1.85, 0.1));
  recorder.set("memory/peak_bytes", 1.6e9);
  for (const auto& [owner, bytes] : {std::pair{"weights", 2.6e8}, {"grads", 2.6e8}, {"optimizer", 5.2e8}, {"kv_cache", 4.1e8}})
    recorder.set(std::string("memory/") + owner + "_bytes", bytes);
  recorder.set("queue/depth", std::floor(4 * noise.uniform()));
}

// As a chat template makes it: the same words around each question, most of them behind it.
std::string prompt_of(const std::string& question) {
  return "<|im_start|>system\nYou add numbers. Think first, answer last.<|im_end|>\n<|im_start|>user\n" + question +
         "\nLet's think step by step and write the last line as <answer>the number</answer>, without a unit and without any other words."
         "<|im_end|>\n<|im_start|>assistant\n<think>\n";
}

data::Batch make_batch(int64_t step, double skill, RandomStream& noise) {
  data::Batch batch{StepId{step}, PolicyVersion{step - 1}, {}};
  for (int64_t g = 0; g < kGroups; ++g) {
    data::Group group;
    group.id = GroupId{(step - 1) * kGroups + g};
    const int64_t a = 10 + noise.below(90), b = 10 + noise.below(90);
    std::string question = std::to_string(a) + " + " + std::to_string(b) + " = ?";
    if (g == 0) question += " <img src=x onerror=\"window.tandemBroken=1\"><script>window.tandemBroken=1</script>";
    group.prompt = {g, prompt_of(question), {1, 2, 3}, std::to_string(a + b), "sums"};
    group.greedy.emplace().score = noise.uniform() < skill ? 1.0 : 0.1;
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

std::vector<data::EvalAnswer> make_answers(double skill, RandomStream& noise) {
  std::vector<data::EvalAnswer> answers;
  for (int64_t row = 0; row < 100; ++row) {
    const std::string sum = std::to_string(row + 2);
    const bool right = noise.uniform() < skill;
    const std::string said = right ? sum : row % 7 ? "not sure" : std::to_string(row + 3);
    const std::string question = "2 + " + std::to_string(row) + " = ?";
    answers.push_back({row, prompt_of(question), sum, "<answer>" + said + "</answer>", right ? 1.0 : 0.0, row < 40 ? "small" : "large",
                       row % 2 ? question : ""});  // an older Tandem kept no question
  }
  return answers;
}

// One rank trains and waits for what the other generates.
void record_spans(monitor::Recorder& recorder, double begin_s) {
  recorder.span("rollout", "rank 0", begin_s, begin_s + 0.9, 0.8);
  recorder.span("train", "rank 0", begin_s + 0.9, begin_s + 1.8);
  recorder.span("rollout", "rank 1", begin_s, begin_s + 0.9);
  recorder.span("ahead", "rank 1", begin_s + 0.9, begin_s + 1.8);
}

void add_steps(const std::string& folder, int64_t steps, int64_t pause_ms) {
  monitor::Recorder recorder;
  recorder.add_sink(std::make_unique<monitor::JsonlSink>(folder + "/metrics.jsonl"));
  recorder.add_sink(std::make_unique<monitor::TensorBoardSink>(folder + "/tensorboard"));
  recorder.add_sink(std::make_unique<monitor::TraceSink>(folder + "/trace.json"));
  recorder.add_sink(std::make_unique<monitor::TimelineSink>(folder + "/timeline.jsonl"));
  data::SampleStore store(folder + "/samples.sqlite");
  RandomStream noise(7, 0);
  const auto skill_at = [&](double step) { return 0.15 + 0.75 * (1 - std::exp(-step / 20)); };
  for (int64_t step = 1; step <= steps; ++step) {
    record_spans(recorder, 1.85 * static_cast<double>(step));
    const double skill = skill_at(static_cast<double>(step));
    record_metrics(recorder, step, skill, noise);
    if (step % 10 == 1 || step == steps) {
      recorder.set("eval/accuracy", skill);
      store.append_evals(StepId{step}, make_answers(skill, noise));
    }
    const data::Batch batch = make_batch(step, skill, noise);
    store.append(batch, make_advantages(batch));
    recorder.commit_step(step);
    recorder.flush();
    log::info("step ", step, "/", steps);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
}

// As tandem run writes it.
void write_recipe(const std::string& folder, int64_t steps) {
  std::ofstream(folder + "/config.yaml") << "run:\n  dir: \"" << folder << "\"  # default: \"run\"\n  steps: " << steps
                                         << "  # default: 100\n  seed: 1\nmodel:\n  path: \"tiny\"  # default: \"\"\n  dtype: \"float32\"\n"
                                            "data:\n  prompt_template: \"say  # default: \\\"no\\\" {prompt}\"\n  train: []\n"
                                            "algo:\n  name: \"remax\"  # default: \"grpo\"\n  kl_coef: 0.05\neval:\n  right_at: 0.5\n";
}

// Holds the folder as a run does.
int grow(const std::string& folder, int64_t steps, int64_t pause_ms, bool fails) {
  std::filesystem::create_directories(folder);
  const int lock = ::open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) throw UserError(folder, "another process runs in this folder", "another folder");
  log::also_to_file(folder + "/log.txt");
  log::quiet(true);
  write_recipe(folder, fails ? 2 * steps : steps);
  std::filesystem::create_directories(folder + "/checkpoint/step_10");
  std::filesystem::create_symlink("step_10", folder + "/checkpoint/latest");
  add_steps(folder, steps, pause_ms);
  if (fails) throw UserError("reward.py:12", "<b>ZeroDivisionError</b>: division by zero", "a reward that every answer gets");
  std::ofstream(folder + "/summary.json") << R"({"eval_before":{"accuracy":0.15},"eval_after":{"accuracy":0.86},"steps":)" << steps
                                          << R"(,"seconds":)" << 1.85 * static_cast<double>(steps) << R"(,"tokens":1234567})";
  return 0;
}

int serve(const std::string& folder) {
  board::Server server(folder, 0);
  std::atomic<bool> stop = false;
  std::thread serving([&] { server.run(stop); });
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  stop = true;
  serving.join();
  return 0;
}

int run(const std::vector<std::string>& args) {
  if (args.size() == 2 && args[0] == "serve") return serve(args[1]);
  if (args.size() != 5 || args[0] != "grow") return 2;
  return grow(args[1], std::stoll(args[2]), std::stoll(args[3]), args[4] == "fail");
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    return tandem::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    tandem::log::write("error", error.what());
    return 1;
  }
}
