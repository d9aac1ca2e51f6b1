// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/process/process_job.h"

#include <unistd.h>

#include <algorithm>
#include <exception>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/backend/process/process_group.h"

namespace tandem::comm {
namespace {

constexpr double kGrace_s = 5;        // what peers get to end by themselves after an abort
constexpr double kReport_s = 2;       // and to say why, where one of them never will
constexpr double kLastResort_s = 15;  // after it a process that still does not end ends itself
constexpr int kEndTag = 1, kCauseTag = 2;

bool contains(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

std::string named(const std::vector<int>& ranks) {
  std::string all;
  for (int r : ranks) all += join_text(all.empty() ? "" : ", ", "rank ", r);
  return all;
}

/// The exit code if this rank's error is a cause, 0 if it has none or only heard of another's.
int cause_of(const std::exception_ptr& error, bool heard_of_another) {
  try {
    std::rethrow_exception(error);
  } catch (const EndedByPeer&) {
    return 0;
  } catch (const PeerError& e) {
    return heard_of_another ? 0 : exit_code_of(e);
  } catch (const std::exception& e) {
    return exit_code_of(e);
  } catch (...) {
    return 1;
  }
}

}  // namespace

ProcessJob::ProcessJob(Transport& transport, double deadline_s) : deadline_s(deadline_s), transport_(transport), ends_(transport.world()) {
  if (size() == 1) return;
  std::vector<Link> links = transport.take_links();
  if (links.empty()) return;
  heartbeat_ = std::make_unique<Heartbeat>(rank(), std::move(links), Heartbeat::Hooks{
      .died = [this](int rank) {
        std::lock_guard lock(mutex_);
        die(join_text("rank ", rank, " died"), true);
      },
      .is_stuck = [this] { return num_stuck_ > 0; },
      .each_beat = [this](Heartbeat& heartbeat) { watch_over_blocking(heartbeat); }});
}

void ProcessJob::abort(const std::string& reason) noexcept {
  std::lock_guard lock(mutex_);
  if (dead_) return;
  die(reason, false);
  transport_.tell(reason);
}

std::string ProcessJob::death() {
  std::lock_guard lock(mutex_);
  hear();
  return reason_;
}

void ProcessJob::hear() {
  if (dead_) return;
  if (const std::string reason = transport_.heard(); !reason.empty()) die(reason, true);
}

bool ProcessJob::killed_by_peer() {
  std::lock_guard lock(mutex_);
  return killed_by_peer_;
}

std::string ProcessJob::blame(const std::vector<int>& missing) {
  const std::vector<int> lost = heartbeat_ ? heartbeat_->lost() : std::vector<int>{}, stuck = heartbeat_ ? heartbeat_->stuck() : lost;
  std::vector<int> suspects = lost;  // who does not beat; else, who does not wait
  if (suspects.empty())
    for (int r = 0; r < size(); ++r)
      if (r != rank() && !contains(stuck, r)) suspects.push_back(r);
  std::vector<int> guilty;
  for (int r : suspects)
    if (contains(missing, r)) guilty.push_back(r);
  std::string whom = named(guilty);
  if (guilty.empty()) whom = suspects.empty() ? named(missing) : named(suspects) + ", for whom " + named(missing) + " waits,";
  return join_text("no sign of ", whom, " within ", deadline_s, " s");
}

ProcessJob::Blocking::Blocking(ProcessJob& job, std::string place) : job_(job) {
  std::lock_guard lock(job_.mutex_);
  entry_ = job_.blocking_.emplace(job_.blocking_.end(), Clock::now() + duration_of_s(job_.deadline_s), std::move(place));
}

ProcessJob::Blocking::~Blocking() {
  std::lock_guard lock(job_.mutex_);
  job_.blocking_.erase(entry_);
}

/// In the heartbeat's thread, at each beat.
void ProcessJob::watch_over_blocking(Heartbeat& heartbeat) {
  const std::vector<int> lost = heartbeat.lost();
  std::lock_guard lock(mutex_);
  if (!blocking_.empty()) hear();  // the thread that blocks does not
  std::string place;
  for (const auto& [until, where] : blocking_) {
    place = where;
    if (Clock::now() >= until)
      die(join_text(where, ": no sign of ", lost.empty() ? "some rank" : named(lost), " within ", deadline_s, " s"), false);
  }
  if (!dead_) return;
  const bool blocks = !place.empty();
  const auto has_had = [&](double seconds) { return Clock::now() >= died_at_ + duration_of_s(seconds); };
  if (!has_reported_ && has_had(blocks ? kReport_s : kLastResort_s)) {
    has_reported_ = true;
    if (!blocks) place = join_text("rank ", rank(), ": what it does");
    log::write("error", reason_.starts_with(place) ? reason_ : place + " ended: " + reason_);
    heartbeat.say_done();
  }
  // Where all live, the others give each other the grace before they say what they have to say.
  if (has_reported_ && has_had(lost.empty() && blocks ? kReport_s + kGrace_s : 0)) transport_.end_process();
}

std::vector<std::string> ProcessJob::untaken() {
  // All have ended, so what was taken has been; only the news of it may still be under way.
  constexpr double kNews_s = 1;
  constexpr useconds_t kMoment_us = 1000;
  for (const Deadline deadline = Deadline::after_s(kNews_s);; usleep(kMoment_us)) {
    const std::vector<std::string> names = transport_.untaken();
    if (names.empty() || deadline.passed()) return names;
  }
}

bool ProcessJob::any_lost() { return heartbeat_ && !heartbeat_->lost().empty(); }

bool ProcessJob::all_ended(double seconds) {
  // With a peer gone the transport is not asked any more: it may go on with exchanges whose memory went with the error that ended them.
  if (any_lost()) {
    ends_->abandon();
    return false;
  }
  const std::unique_ptr<Requests> requests = ends_->begin();
  std::byte nothing{};
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    requests->receive(r, kEndTag, &nothing, 0);
    requests->send(r, kEndTag, &nothing, 0);
  }
  const auto given_up = [&] {
    requests->cancel();
    ends_->abandon();
    return false;
  };
  Deadline deadline = Deadline::after_s(seconds + kReport_s);  // a peer that waits in vain for so long says so first
  bool hurry = false;
  for (;;) {
    const Requests::State state = requests->test();
    if (state == Requests::State::kDone) return true;
    if (state == Requests::State::kMisfit) return given_up();
    const bool dead = !death().empty();
    if (dead && any_lost()) return given_up();  // that one will not come
    if (dead && !hurry) {
      hurry = true;
      deadline = Deadline::after_s(kGrace_s);
    }
    if (deadline.passed()) return given_up();
    usleep(500);
  }
}

std::vector<int> ProcessJob::gather(int mine) {
  std::vector<int> all(static_cast<size_t>(size()));
  const std::unique_ptr<Requests> requests = ends_->begin();
  for (int r = 0; r < size(); ++r) {
    int& place = all[static_cast<size_t>(r)];
    if (r == rank()) {
      place = mine;
      continue;
    }
    requests->receive(r, kCauseTag, &place, sizeof place);
    requests->send(r, kCauseTag, &mine, sizeof mine);
  }
  const Deadline deadline = Deadline::after_s(kGrace_s);
  for (int64_t round = 0;; ++round) {
    const Requests::State state = requests->test();
    if (state == Requests::State::kDone) return all;
    if (!requests->pause(round)) continue;
    if (state != Requests::State::kMisfit && !deadline.passed()) continue;
    const std::vector<int> missing = requests->unfinished();
    requests->cancel();
    throw PeerError(join_text("rank ", rank(), ": the end: no sign of ", named(missing), " within ", kGrace_s, " s"));
  }
}

void ProcessJob::all_reported() {
  if (!heartbeat_) return;
  heartbeat_->say_done();
  if (!heartbeat_->all_done(kReport_s)) usleep(500000);  // those that no longer hear of each other get as long
}

bool ProcessJob::is_first_alive() {
  const std::vector<int> lost = heartbeat_ ? heartbeat_->lost() : std::vector<int>{};
  for (int r = 0; r < rank(); ++r)
    if (!contains(lost, r)) return false;
  return true;
}

void ProcessJob::die(const std::string& reason, bool by_peer) {
  if (dead_) return;
  dead_ = true;
  killed_by_peer_ = by_peer;
  reason_ = reason;
  died_at_ = Clock::now();
}

void run_as_rank(Transport& transport, double deadline_s, const RankBody& body) {
  ProcessJob job(transport, deadline_s);
  std::exception_ptr error;
  int cause = 0;
  try {
    const std::unique_ptr<Group> world = process_world(job);
    body(*world);
  } catch (...) {
    error = std::current_exception();
    (void)job.death();  // takes what peers have said
    cause = cause_of(error, job.killed_by_peer());
    job.abort(join_text("rank ", job.rank(), " failed: ", what_of(error)));
  }
  if (!job.all_ended(deadline_s)) {
    // The job can no longer end as it should. Whoever lives says why before the rest is ended.
    const std::string reason = error ? what_of(error) : join_text("rank ", job.rank(), ": a peer did not end: ", job.death());
    log::write("error", reason);
    job.all_reported();
    if (job.is_first_alive()) transport.end_others();
    throw ReportedElsewhere(3, reason);
  }
  const std::string death = job.death();
  if (!error && death.empty()) {
    if (const std::vector<std::string> lost = job.untaken(); !lost.empty()) {
      error = std::make_exception_ptr(PeerError(lost.front() + ": nobody took the message"));
      cause = cause_of(error, false);
    }
  }
  const std::vector<int> causes = job.gather(cause);
  transport.close();
  const auto first = std::find_if(causes.begin(), causes.end(), [](int code) { return code != 0; });
  if (first != causes.end() && first - causes.begin() != job.rank())
    throw ReportedElsewhere(*first, error ? what_of(error) : join_text("rank ", job.rank(), " ended, but: ", death));
  if (error) std::rethrow_exception(error);
  if (!death.empty()) throw PeerError(join_text("rank ", job.rank(), " ended, but: ", death));
}

}  // namespace tandem::comm
