// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/log.h"
#include "tandem/data/source.h"
#include "tandem/device/process.h"

namespace tandem::runtime {
namespace {

constexpr std::chrono::milliseconds kLiveMoment{100};  // between two drawings

// `format` has one %f; what is too long to read is shown with an exponent.
std::string number(std::string format, double x) {
  if (std::abs(x) >= 1e12) format[format.find('f', format.find('%'))] = 'e';
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format.c_str(), x);
  return buffer;
}

std::string score(const std::optional<serve::EvalSummary>& e) { return e ? number("%7.3f", e->mean_score) : "    -  "; }
std::string percent(const std::optional<serve::EvalSummary>& e) { return e ? number("%5.1f %%", 100 * e->accuracy) : "    -  "; }

// A line for the accuracy of each named set.
void print_sets(const RunSummary& s) {
  const auto named = [](const std::optional<serve::EvalSummary>& all, const std::string& name) -> std::optional<serve::EvalSummary> {
    if (all)
      for (const serve::NamedSummary& set : all->sets)
        if (set.name == name) return set.summary;
    return std::nullopt;
  };
  const std::optional<serve::EvalSummary>& last = s.after ? s.after : s.before;
  if (!last) return;
  for (const serve::NamedSummary& set : last->sets) {
    const std::string name = "  " + set.name;
    log::info(name, std::string(name.size() < 21 ? 21 - name.size() : 1, ' '), percent(named(s.before, set.name)), "   ",
              percent(named(s.after, set.name)), "    (", set.summary.num_problems, " problems)");
  }
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.size() > 100 ? text.substr(0, 97) + "..." : text;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  char buffer[32];
  if (s >= 3600) std::snprintf(buffer, sizeof buffer, "%ldh%02ldm", static_cast<long>(s / 3600), static_cast<long>(s / 60 % 60));
  else if (s >= 60) std::snprintf(buffer, sizeof buffer, "%ldm%02lds", static_cast<long>(s / 60), static_cast<long>(s % 60));
  else std::snprintf(buffer, sizeof buffer, "%lds", static_cast<long>(s));
  return buffer;
}

LiveLine::LiveLine() {
  if (log::shows_live()) thread_ = std::thread([this] { draw(); });
}

LiveLine::~LiveLine() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
  log::live("");
}

void LiveLine::stage(const std::string& what, int64_t num_samples) {
  {
    std::lock_guard lock(mutex_);
    what_ = what, num_samples_ = num_samples;
    samples_ = tokens_ = 0;
    begin_s_ = now_s();
    drawn_ = false;
  }
  changed_.notify_one();
}

void LiveLine::count(int64_t samples, int64_t tokens) {
  std::lock_guard lock(mutex_);
  samples_ = samples, tokens_ = tokens;
}

void LiveLine::left(double seconds) {
  std::lock_guard lock(mutex_);
  end_s_ = seconds > 0 ? now_s() + seconds : 0;
}

// Also where nobody calls, as in a long pass: then the seconds go on.
void LiveLine::draw() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    const std::string shown = text();
    drawn_ = true;
    lock.unlock();
    log::live(shown);
    lock.lock();
    changed_.wait_for(lock, kLiveMoment, [this] { return closing_ || !drawn_; });
  }
}

std::string LiveLine::text() const {
  if (what_.empty()) return "";
  std::string line = what_;
  if (num_samples_ > 0) line += join_text("  ", samples_, "/", num_samples_, " samples");
  if (tokens_ > 0) line += join_text("  ", tokens_, " tokens");
  line += number("  %.1f s", now_s() - begin_s_);
  return end_s_ > 0 ? line + "  left " + duration_text(end_s_ - now_s()) : line;
}

void Progress::done(int64_t step, double seconds) {
  const double now = now_s(), each = last_s_ == 0 ? seconds : now - last_s_;
  pace_s_ = pace_s_ == 0 ? each : 0.9 * pace_s_ + 0.1 * each;
  last_step_ = step, last_s_ = now;
}

void Progress::line(const monitor::Metrics& metrics) const {
  const auto value = [&](const char* name) {
    const auto it = metrics.find(name);
    return it == metrics.end() ? 0.0 : it->second;
  };
  std::string line = join_text("step ", last_step_, "/", total_steps_);
  if (metrics.count("reward/mean")) line += number("  reward %.3f", value("reward/mean"));
  else line += number("  loss %.4f", value("actor/loss"));
  if (metrics.count("eval/accuracy"))
    line += "  " + accuracy_text({.accuracy = value("eval/accuracy"), .mean_score = value("eval/score_mean")});
  if (metrics.count("data/groups_without_signal"))  // groups whose scores differ, which are those that teach
    line += number("  spread %.0f %%", 100 * (1 - value("data/groups_without_signal") / static_cast<double>(groups_per_step_)));
  if (metrics.count("data/response_tokens_mean")) line += number("  length %.1f", value("data/response_tokens_mean"));
  if (metrics.count("actor/kl_ref")) line += number("  kl %.4f", value("actor/kl_ref"));
  if (value("reward/failed") > 0) line += number("  failed %.1f %%", 100 * value("reward/failed"));
  line += number("  grad %.3f", value("actor/grad_norm")) + number("  %.0f tok/s", value("throughput/tokens_per_s"));
  line += number("  %.2f s", value("time/step_s")) + "  left " + duration_text(left_s());
  log::info(line);
}

void Progress::without_signal(int64_t step, bool is_scored) {
  if (without_signal_.empty() && !is_scored)
    log::warning("step ", step, ": no group has a signal: the reward gave None for all answers, so each scores 0; such steps are named at ",
                 "the end (a number for each answer it applies to; docs/rewards.md)");
  else if (without_signal_.empty())
    log::warning("step ", step, ": no group has a signal: the scores of each are all alike, so all advantages are 0; such steps are ",
                 "named at the end (a finer reward, an easier task, a larger schedule.group_size; after a collapse a smaller train.lr)");
  if (!without_signal_.empty() && without_signal_.back().second == step - 1) without_signal_.back().second = step;
  else without_signal_.emplace_back(step, step);
}

std::string Progress::steps_without_signal() const {
  std::string text;
  for (const auto& [first, last] : without_signal_)
    text += join_text(text.empty() ? "" : ", ", first, first == last ? "" : join_text(" to ", last));
  return text;
}

std::string accuracy_text(const serve::EvalSummary& e) {
  return number("accuracy %.1f %%", 100 * e.accuracy) + (e.graded() ? number(", mean score %.3f", e.mean_score) : "");
}

// Which sets of data.eval are trained on, in words. Problems that are made here are held out.
std::string not_held_out(const data::Options& options) {
  std::string text;
  for (const data::EvalSet& set : data::eval_sets(options))
    for (const data::MixPart& part : data::mix_of(options))
      if (set.path == part.path && !data::is_generated(set.path)) text += ", " + set.path + " not held out but trained on";
  return text;
}

void print_result(const RunSummary& s, const std::vector<data::EvalAnswer>& before, const std::vector<data::EvalAnswer>& after,
                  const config::RunConfig& config) {
  const int64_t problems = s.after ? s.after->num_problems : s.before ? s.before->num_problems : 0;
  log::info("== result: ", s.steps, " steps, ", duration_text(s.seconds), ", ", s.tokens, " tokens");
  if (problems > 0) {
    log::info("\n                      before     after");
    log::info("mean score           ", score(s.before), "   ", score(s.after));
    log::info("accuracy             ", percent(s.before), "   ", percent(s.after), "    (", problems, " problems of data.eval",
              not_held_out(config.data), "; right: a score of ", config.eval.right_at, " or more, eval.right_at)");
    print_sets(s);
  }
  for (size_t i = 0; i < std::min<size_t>(3, after.size()); ++i) {
    const auto shown = [&](const std::string& text) {
      return one_line(config.data.eval == std::vector<std::string>{"synthetic"} ? data::as_read(config.data, text) : text);
    };
    const auto mark = [&](const data::EvalAnswer& a) {
      const std::string how = a.score >= config.eval.right_at ? "  right" : "  wrong";
      return a.score == 0 || a.score == 1 ? how : how + number(", score %.3f", a.score);
    };
    log::info("\n  ", shown(after[i].question), "   (answer: ", shown(after[i].answer), ")");
    const auto response = [&](const data::EvalAnswer& a) { return a.response.empty() ? "(empty)" : shown(a.response); };
    if (i < before.size()) log::info("    before: ", response(before[i]), mark(before[i]));
    log::info("    after:  ", response(after[i]), mark(after[i]));
  }
  if (!s.without_signal.empty()) log::info("\nsteps without a signal, whose groups had scores all alike: ", s.without_signal);
  log::info("\nSee the curves:  ", device::program_path(), " board ", config.run.dir);
}

}  // namespace tandem::runtime
