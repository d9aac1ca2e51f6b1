// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/scorer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::reward {

Answer answer_of(const data::Group& group, const data::Sample& sample) {
  Answer answer{sample.text, group.prompt.answer, std::ssize(sample.ids), sample.finish == data::FinishReason::kLength};
  answer.prompt = group.prompt.text;
  answer.messages = group.prompt.messages;
  answer.data_source = group.prompt.data_source;
  answer.columns = group.prompt.columns;
  answer.group = value(group.id);
  return answer;
}

namespace {

constexpr double kMomentS = 0.1;  // between looks at whether to stop

// An environment has scored all of a group, or none.
void score_samples(const Rule& rule, const data::Group& group, std::span<data::Sample> samples) {
  const auto num_scored = std::ranges::count(samples, true, &data::Sample::scored);
  if (!samples.empty() && num_scored == std::ssize(samples)) return;
  if (num_scored > 0)
    throw UserError("the environment", join_text("gave a reward to ", num_scored, " of ", samples.size(), " episodes"),
                    "one to each, or to none");
  std::vector<Answer> answers;
  for (const data::Sample& sample : samples) answers.push_back(answer_of(group, sample));
  std::vector<Score> scores = rule.score_batch(answers);
  for (size_t i = 0; i < scores.size(); ++i) {
    samples[i].score = scores[i].score;
    std::ranges::move(scores[i].parts, std::back_inserter(samples[i].parts));
    samples[i].scored = true;
  }
}

void score_zero(data::Sample& sample) {
  sample.score = 0;
  sample.parts = {{kFailedPart, 1.0}};
  sample.scored = true;
}

bool is_failed(const data::Sample& sample) { return !sample.parts.empty() && sample.parts.front().first == kFailedPart; }

std::string not_finite(double score) { return "scores an answer " + std::to_string(score); }

// Samples that fail together are asked for one by one, so that the others keep their scores: but for a server or a worker that does not
// answer, which would be waited for as often.
void score_or_zero(const Rule& rule, const data::Group& group, std::span<data::Sample> samples, std::string& reason) {
  try {
    score_samples(rule, group, samples);
    for (data::Sample& sample : samples) {
      if (std::isfinite(sample.score)) continue;
      if (reason.empty()) reason = not_finite(sample.score);
      score_zero(sample);
    }
    return;
  } catch (const UserError& e) {
    if (reason.empty()) reason = e.what();
    if (samples.size() > 1) {
      for (data::Sample& sample : samples) score_or_zero(rule, group, {&sample, 1}, reason);
      return;
    }
  } catch (const std::exception& e) {
    if (reason.empty()) reason = e.what();
  }
  for (data::Sample& sample : samples) score_zero(sample);
}

// The group, and the record of its prompt.
std::string place_of(const data::Group& group) {
  const data::Prompt& prompt = group.prompt;
  const std::string row = prompt.data_source.empty() ? "" : join_text(" (", prompt.data_source, " row ", prompt.row + 1, ")");
  return join_text("group ", value(group.id), row);
}

}  // namespace

Grading grading_of(const Options& options) { return {options.workers, options.on_error == "zero", options.notices}; }

std::string score_group_or_zero(const Rule& rule, data::Group& group) {
  std::string reason;
  score_or_zero(rule, group, group.samples, reason);
  if (group.greedy) score_or_zero(rule, group, {&*group.greedy, 1}, reason);
  return reason;
}

void score_group(const Rule& rule, data::Group& group) {
  const auto score = [&](std::span<data::Sample> samples) {
    score_samples(rule, group, samples);
    for (const data::Sample& sample : samples)
      if (!std::isfinite(sample.score)) throw UserError(rule.name(), not_finite(sample.score), "expected a finite number");
  };
  score(group.samples);
  if (group.greedy) score({&*group.greedy, 1});
}

Scorer::Scorer(const Rule& rule, const Grading& grading) : rule_(rule), grading_(grading) {
  try {
    for (int64_t i = 0; i < grading.workers; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::exception& e) {
    end();
    throw PeerError("reward.workers: thread " + std::to_string(threads_.size() + 1) + " cannot start: " + e.what());
  }
}

Scorer::~Scorer() { end(); }

void Scorer::end() {
  const auto grading = [&] { return std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.started && !job.done; }); };
  std::unique_lock lock(mutex_);
  closing_ = true;
  submitted_.notify_all();
  // More than once: a thread that has taken its group may call the rule only after the rule was told.
  while (grading()) {
    lock.unlock();
    rule_.abandon();
    lock.lock();
    finished_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !grading(); });
  }
  lock.unlock();
  for (std::thread& thread : threads_) thread.join();
}

void Scorer::grade(data::Group& group) {
  if (!grading_.zero_on_error) return score_group(rule_, group);
  const std::string reason = score_group_or_zero(rule_, group);
  if (reason.empty()) return;
  const auto failed = std::ranges::count_if(group.samples, is_failed);
  const std::string what = failed > 0 ? join_text(failed, " of ", group.samples.size(), " samples: ", reason, "; such samples score 0 "
                                                  "(reward.on_error), and reward/failed counts them")
                                      : join_text("all ", group.samples.size(), " samples at once, and not for each alone: ", reason,
                                                  "; they have the scores of each alone");
  grading_.notices->say("grading", join_text("reward rule ", rule_.name(), ", ", place_of(group), ": grading failed for ", what));
}

void Scorer::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = jobs_.end();
    submitted_.wait(lock, [&] { return closing_ || (next = std::ranges::find(jobs_, false, &Job::started)) != jobs_.end(); });
    if (closing_) return;
    Job* const job = &*next;
    job->started = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      grade(job->group);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    job->error = error;
    job->done = true;
    finished_.notify_all();
  }
}

void Scorer::submit(data::Group&& group) {
  locked(mutex_, [&] { jobs_.push_back({std::move(group)}); });
  submitted_.notify_one();
}

std::optional<data::Group> Scorer::collect(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (jobs_.empty() || !finished_.wait_until(lock, deadline.time(), [&] { return jobs_.front().done; })) return std::nullopt;
  Job& head = jobs_.front();
  if (head.error) {
    const std::exception_ptr error = std::exchange(head.error, nullptr);
    for (data::Sample& sample : head.group.samples) sample.scored = false;
    if (head.group.greedy) head.group.greedy->scored = false;
    const std::string where = "reward rule " + rule_.name() + ", " + place_of(head.group);
    try {
      std::rethrow_exception(error);
    } catch (const PeerError& e) {
      throw PeerError(where + ": grading failed: " + e.what());
    } catch (const UserError& e) {
      throw e.seen_from(where + ": grading failed");
    } catch (const std::exception& e) {
      throw UserError(where, std::string("grading failed: ") + e.what(), "expected a rule that gives every answer a score");
    } catch (...) {
      throw UserError(where, "grading failed with an unknown exception", "expected a rule that gives every answer a score");
    }
  }
  data::Group group = std::move(head.group);
  jobs_.pop_front();
  return group;
}

std::vector<data::Group> Scorer::collect_all(double patience_s, const StopRequested& stop) {
  std::vector<data::Group> groups;
  Deadline deadline = Deadline::after_s(patience_s);
  while (num_pending() > 0) {
    if (stop && stop()) throw Interrupted("stopped while grading");
    std::optional<data::Group> group = collect(Deadline::after_s(std::min(kMomentS, patience_s)));
    if (!group && !deadline.passed()) continue;
    if (!group)
      throw PeerError("reward rule " + rule_.name() + ": a group waits for its grade for over " + std::to_string(patience_s) + " s");
    groups.push_back(std::move(*group));
    deadline = Deadline::after_s(patience_s);
  }
  return groups;
}

size_t Scorer::num_pending() const {
  std::lock_guard lock(mutex_);
  return jobs_.size();
}

}  // namespace tandem::reward
