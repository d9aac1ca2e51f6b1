// SPDX-License-Identifier: Apache-2.0
// What one step leaves behind: its metrics, its samples, its checkpoint.

#include <algorithm>
#include <cmath>
#include <map>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/runtime/rl_run.h"

namespace tandem::runtime {
namespace {

void record_rewards(monitor::Recorder& recorder, const data::Batch& batch) {
  double sum = 0, squares = 0, n = 0;
  std::map<std::string, double> parts;
  int64_t flat = 0;
  for (const data::Group& group : batch.groups) {
    bool all_equal = true;
    for (const data::Sample& s : group.samples) {
      sum += s.score, squares += s.score * s.score, n += 1;
      all_equal &= s.score == group.samples.front().score;
      for (const auto& [name, score] : s.parts) parts[name] += score;
    }
    flat += all_equal;
  }
  recorder.set("reward/mean", sum / n);
  recorder.set("reward/std", std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n))));
  for (const auto& [name, total] : parts) recorder.set("reward/" + name, total / n);
  recorder.set("data/groups_without_signal", static_cast<double>(flat));
}

void record_lengths(monitor::Recorder& recorder, const data::Batch& batch, const BatchRows& bodies) {
  double tokens = 0, n = 0, most = 0, truncated = 0, prompt_tokens = 0, lag_sum = 0, lag_max = 0;
  std::map<int64_t, int64_t> histogram;
  for (const data::Group& group : batch.groups) {
    const auto lag = data::lag(group, batch.version);
    lag_sum += static_cast<double>(lag), lag_max = std::max(lag_max, static_cast<double>(lag));
    ++histogram[lag];
    for (const data::Sample& s : group.samples) {
      const auto length = static_cast<double>(bodies.num_tokens(s.id));
      tokens += length, n += 1, most = std::max(most, length), truncated += s.finish == data::FinishReason::kLength;
      prompt_tokens += static_cast<double>(bodies.num_prompt_tokens(group));
    }
  }
  recorder.set("data/response_tokens_mean", tokens / n);
  recorder.set("data/response_tokens_max", most);
  recorder.set("data/prompt_tokens_mean", prompt_tokens / n);
  recorder.set("data/truncated_fraction", truncated / n);
  recorder.set("staleness/lag_mean", lag_sum / static_cast<double>(batch.groups.size()));
  recorder.set("staleness/lag_max", lag_max);
  for (const auto& [lag, groups] : histogram) recorder.set("staleness/lag_" + std::to_string(lag), static_cast<double>(groups));
}

void record_update(monitor::Recorder& recorder, const train::StepReport& r, bool has_reference) {
  recorder.set("actor/loss", r.loss);
  recorder.set("actor/grad_norm", r.grad_norm);
  recorder.set("actor/lr", r.lr);
  recorder.set("actor/entropy", r.entropy);
  recorder.set("actor/clip_fraction", r.clip_fraction);
  if (r.router_load_max) recorder.set("actor/router_load_max", *r.router_load_max);
  if (r.router_balance) recorder.set("actor/router_balance_loss", *r.router_balance);
  if (r.router_z) recorder.set("actor/router_z_loss", *r.router_z);
  if (has_reference) recorder.set("actor/kl_ref", r.kl_ref);
  if (r.kl_rollout_train) recorder.set("actor/kl_rollout_train", *r.kl_rollout_train);
  recorder.set("actor/ratio_max", r.ratio_max);
}

}  // namespace

void RlRun::record_samples(const StepData& step) {
  if (!folder_) return;
  const data::Batch batch{data::StepId{state_.step}, step.batch.version, bodies_.complete(step.batch.groups)};
  folder_->samples().append(batch, step.advantages, step.logprobs);
}

void RlRun::finish_step(StepData& step) {
  monitor::Recorder& recorder = context_.recorder;
  record_rewards(recorder, step.batch);
  record_lengths(recorder, step.batch, bodies_);
  record_update(recorder, step.report, algorithm_.needs_reference());
  record_samples(step);
  bodies_.drop(step.batch.groups);
  state_.tokens += static_cast<int64_t>(step.report.sequence_tokens);
  const double seconds = now_s() - step.begin_s;
  recorder.set("policy_version", static_cast<double>(state_.version));
  recorder.set("time/step_s", seconds);
  recorder.add("time/wait_s", 0);
  recorder.set("throughput/tokens_per_s", step.report.sequence_tokens / seconds);
  double rollout_s = std::max(1e-9, recorder.current("time/rollout_s"));
  if (overlaps()) {
    const double ahead_s = rollout_->take_ahead_s();
    rollout_s += ahead_s;
    recorder.set("time/ahead_s", ahead_s);
    recorder.set("data/groups_ahead", static_cast<double>(rollout_->take_num_ahead()));
  }
  if (rollout_) recorder.set("throughput/rollout_tokens_per_s", rollout_->take_num_tokens() / rollout_s);
  recorder.set("throughput/train_tokens_per_s", step.report.sequence_tokens / std::max(1e-9, recorder.current("time/train_s")));
  recorder.set("data/computed_tokens", step.report.computed_tokens);
  recorder.set("queue/depth", static_cast<double>(queue_.num_finished()));
  recorder.set("queue/outstanding", static_cast<double>(queue_.num_outstanding()));
  recorder.set("staleness/dropped", static_cast<double>(queue_.counters().dropped));
  recorder.set("staleness/waited", static_cast<double>(queue_.counters().waited));
  if (rollout_) recorder.set("data/epoch", prompts_.epochs(rollout_->next_group()));
  record_memory(context_);
  skew_.record(recorder);
  conclude_step();
}

// What is left of a step when its numbers are known. A stop during the evaluation saves the numbers, too: the resumed run
// begins here.
void RlRun::conclude_step() {
  monitor::Recorder& recorder = context_.recorder;
  state_.unconcluded.clear();
  last_eval_.reset();
  const int64_t every = config_.eval.every_steps;
  const bool last = state_.step == config_.run.steps;
  if (eval_prompts_ && ((every > 0 && state_.step % every == 0) || (last && config_.eval.after))) {
    const monitor::Metrics recorded = recorder.current();
    last_eval_ = evaluate(state_.step);
    if (!last_eval_) {
      state_.unconcluded = recorded;
      save();
      throw Interrupted(join_text("stopped after step ", state_.step, ", in its evaluation; --resume continues"));
    }
  }
  const monitor::Metrics metrics = recorder.commit_step(state_.step);
  if (context_.is_first()) progress_.step(state_.step, metrics);
  const int64_t save_every = config_.checkpoint.every_steps;
  if ((save_every > 0 && state_.step % save_every == 0) || last) save();
}

}  // namespace tandem::runtime
