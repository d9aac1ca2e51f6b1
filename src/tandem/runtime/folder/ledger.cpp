// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/ledger.h"

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/scalar.h"

namespace tandem::runtime {
namespace {

// Above either, what is trained on is no longer on-policy by a margin that matters: a mean KL per token, and nats of one token.
constexpr double kLargeKl = 1e-3, kLargeGap = 0.5;

}  // namespace

Ledger::Ledger(const policy::RunParts& parts, RunFolder* folder, const std::string& model_dir, int64_t total_steps)
    : parts_(parts),
      folder_(folder),
      files_(parts, parts.config.run.dir, model_dir),
      progress_(total_steps, parts.config.schedule.queue.groups_per_step),
      memory_(parts.config.memory, parts.memory),
      total_steps_(total_steps) {
  if (parts.ranks.is_first()) live_.emplace();
}

void Ledger::start_clock() { started_s_ = now_s(); }

bool Ledger::resume(TrainedRoles roles, const Resume& how) {
  std::optional<RunState> found = files_.load(roles, how);
  if (found) state_ = std::move(*found);
  const bool is_of_another = folder_ && !state_.eval_digest.empty() && state_.eval_digest != folder_->eval_digest();
  if (comm::any_of(parts_.ranks.world, is_of_another) && state_.before) {
    state_.before.reset();
    if (folder_) log::warning("resume: the evaluation before training was graded otherwise; the result leaves it out");
  }
  return found.has_value();
}

void Ledger::open() {
  seconds_before_ = state_.seconds;
  if (folder_) folder_->open_sinks(parts_.recorder, state_);
  if (folder_ && parts_.ranks.world.size() > 1) folder_->samples().open_parts();
  if (parts_.ranks.is_first()) log::info(parts_.compute.text());
}

double Ledger::seconds() const { return seconds_before_ + now_s() - started_s_; }

void Ledger::save(TrainedRoles roles, bool behind) {
  count_written(behind ? &StateFiles::wait : &StateFiles::settle);
  SaveSamples save_samples;
  if (folder_) {
    folder_->come_back();
    folder_->samples().flush();
    state_.sink_bytes = parts_.recorder.flush();
    if (folder_->decisions()) state_.sink_bytes["decisions"] = folder_->decisions()->flush();
    state_.num_samples = folder_->samples().num_samples();
    state_.eval_digest = folder_->eval_digest();
    save_samples = [this](const std::string& path) { folder_->samples().save_unwritten(path); };
  }
  state_.seconds = seconds();
  behind ? files_.save_behind(state_, roles, save_samples) : files_.save(state_, roles, save_samples);
}

void Ledger::count_written(std::optional<Written> (StateFiles::*ask)()) {
  std::optional<Written> written;
  try {
    written = (files_.*ask)();
  } catch (const PeerError&) {
    if (!comm::any_of(parts_.ranks.world, fault() != nullptr)) throw;  // else the end of the step says why, and saves
  }
  if (!written) return;
  parts_.recorder.add("time/checkpoint_write_s", written->end_s - written->begin_s);
  parts_.recorder.span("checkpoint", "checkpoint", written->begin_s, written->end_s);
}

void Ledger::keep_decisions(const std::string& lines) {
  if (folder_ && folder_->decisions() && !lines.empty()) folder_->decisions()->append(lines);
}

void Ledger::commit(int64_t line_every) {
  const monitor::Metrics metrics = parts_.recorder.commit_step(state_.step);
  const bool line = state_.step % line_every == 0 || state_.step == total_steps_;
  const auto seconds = metrics.find("time/step_s");
  progress_.done(state_.step, seconds == metrics.end() ? 0 : seconds->second);
  if (parts_.ranks.is_first() && line) progress_.line(metrics);
  if (live_) live_->left(progress_.left_s());
}

void Ledger::without_signal(bool is_scored) {
  if (parts_.ranks.is_first()) progress_.without_signal(state_.step, is_scored);
}

void Ledger::gap(const train::StepReport& report) {
  const double kl = report.kl_rollout_train.value_or(0), most = report.gap ? report.gap->max : 0;
  if (state_.gap_told || !(kl > kLargeKl || most > kLargeGap)) return;
  state_.gap_told = true;
  if (parts_.ranks.is_first())
    log::warning("step ", state_.step, ": rollout and training give the same tokens other log-probabilities (actor/kl_rollout_train ", kl,
                 ", gap/max ", most, "), so the policy that samples is not the one that trains; nothing corrects for it ",
                 "(--set algo.correction=token weights each token by their ratio)");
}

RunSummary Ledger::summary() const {
  return {state_.before, {}, state_.step, seconds(), state_.tokens, progress_.steps_without_signal()};
}

}  // namespace tandem::runtime
