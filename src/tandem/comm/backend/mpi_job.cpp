// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/mpi_job.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

constexpr double kGrace_s = 5;       // what peers get to end by themselves after an abort
constexpr double kReport_s = 2;      // and to say why, where one of them never will
constexpr double kLastResort_s = 15;  // after it a process that still does not end ends itself
constexpr double kMeet_s = 10;

bool contains(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

std::string named(const std::vector<int>& ranks) {
  std::string all;
  for (int r : ranks) all += join_text(all.empty() ? "" : ", ", "rank ", r);
  return all;
}

bool delivered(SentMessage& message) {
  int done = 0;
  // An error ends the requests, too: whoever waits for the message says what became of the peer.
  const int code = MPI_Testall(static_cast<int>(message.requests.size()), message.requests.data(), &done, MPI_STATUSES_IGNORE);
  return done || code != MPI_SUCCESS;
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw PeerError(join_text(call, ": ", text.data()));
}

MpiJob::MpiJob(double deadline_s) : deadline_s(deadline_s) {
  order_ranks();
  MPI_Comm_set_errhandler(notices_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(notices_, &rank_);
  MPI_Comm_size(notices_, &size_);
  MPI_Irecv(heard_.data(), static_cast<int>(heard_.size()), MPI_CHAR, MPI_ANY_SOURCE, kNoticeTag, notices_, &notice_);
  if (size_ == 1) return;
  if (order_.num_machines() > 1) log_machines();
  start_heartbeat();
  mover_ = std::thread([this] { move_messages(); });
}

MpiJob::~MpiJob() { stop_moving(); }

void MpiJob::order_ranks() {
  int launched = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &launched);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm machine;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, launched, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  int first = launched;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, machine), "MPI_Bcast");
  MPI_Comm_free(&machine);
  std::vector<int> firsts(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  order_ = order_by_machine(firsts);
  const auto place = std::ranges::find(order_.launched, launched) - order_.launched.begin();
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, static_cast<int>(place), &notices_), "MPI_Comm_split");
}

void MpiJob::log_machines() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> mine{};
  int length = 0;
  MPI_Get_processor_name(mine.data(), &length);
  std::vector<char> all(mine.size() * static_cast<size_t>(size_));
  const int each = static_cast<int>(mine.size());
  check_mpi(MPI_Gather(mine.data(), each, MPI_CHAR, all.data(), each, MPI_CHAR, 0, notices_), "MPI_Gather");
  if (rank_ != 0) return;
  std::vector<std::string> names;
  for (size_t r = 0; r < static_cast<size_t>(size_); ++r) names.emplace_back(all.data() + r * mine.size());
  log::info(to_text(order_, names));
}

void MpiJob::move_messages() {
  constexpr useconds_t kPause_us = 20;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (sent_.empty()) {
      changed_.wait(lock);
      continue;
    }
    sent_.remove_if(delivered);
    lock.unlock();
    usleep(kPause_us);
    lock.lock();
  }
}

void MpiJob::stop_moving() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (mover_.joinable()) mover_.join();
}

void MpiJob::start_heartbeat() {
  std::array<char, 4096> invitation{};
  std::optional<Listener> listener;
  if (rank_ == 0) {
    // Another machine's loopback is not this one.
    std::vector<Address> offered = chosen(own_addresses(), interface_choice(), kInterfaceVariable);
    if (order_.num_machines() > 1) std::erase_if(offered, [](const Address& address) { return address.is_loopback; });
    try {
      if (offered.empty()) throw PeerError("rank 0: heartbeat: this machine has no address that others can reach");
      listener.emplace(offered);
      listener->invitation().copy(invitation.data(), invitation.size() - 1);
    } catch (const PeerError& e) {
      log::warning(e.what(), ": a rank that dies shows at the deadline only");
    }
  }
  check_mpi(MPI_Bcast(invitation.data(), static_cast<int>(invitation.size()), MPI_CHAR, 0, notices_), "MPI_Bcast");
  if (!invitation[0]) return;
  std::vector<Link> links(static_cast<size_t>(size_));
  if (listener) links = listener->accept_all(size_, kMeet_s);
  else links[0] = accept_invitation(invitation.data(), rank_, kMeet_s);
  if (rank_ != 0 && !links[0].is_open())
    log::warning("rank ", rank_, ": no TCP connection to rank 0: if it dies, that shows at the deadline only");
  heartbeat_ = std::make_unique<Heartbeat>(rank_, std::move(links), Heartbeat::Hooks{
      .died = [this](int rank) {
        std::lock_guard lock(mutex_);
        die(join_text("rank ", rank, " died"), true);
      },
      .is_stuck = [this] { return num_stuck_ > 0; },
      .each_beat = [this](Heartbeat& heartbeat) { watch_over_blocking(heartbeat); }});
}

void MpiJob::abort(const std::string& reason) noexcept {
  std::lock_guard lock(mutex_);
  if (dead_) return;
  die(reason, false);
  // Kept until the process ends: a peer may take it late.
  std::strncpy(told_.data(), reason.c_str(), told_.size() - 1);
  for (int r = 0; r < size_; ++r) {
    MPI_Request request;
    if (r != rank_ && MPI_Isend(told_.data(), static_cast<int>(told_.size()), MPI_CHAR, r, kNoticeTag, notices_, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

std::string MpiJob::death() {
  std::lock_guard lock(mutex_);
  sent_.remove_if(delivered);
  hear();
  return reason_;
}

void MpiJob::hear() {
  int arrived = 0;
  if (dead_ || notice_ == MPI_REQUEST_NULL) return;
  if (MPI_Test(&notice_, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) die(heard_.data(), true);
}

bool MpiJob::killed_by_peer() {
  std::lock_guard lock(mutex_);
  return killed_by_peer_;
}

std::string MpiJob::blame(const std::vector<int>& missing) {
  const std::vector<int> lost = heartbeat_ ? heartbeat_->lost() : std::vector<int>{}, stuck = heartbeat_ ? heartbeat_->stuck() : lost;
  std::vector<int> suspects = lost;  // who does not beat; else, who does not wait
  if (suspects.empty())
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && !contains(stuck, r)) suspects.push_back(r);
  std::vector<int> guilty;
  for (int r : suspects)
    if (contains(missing, r)) guilty.push_back(r);
  std::string whom = named(guilty);
  if (guilty.empty()) whom = suspects.empty() ? named(missing) : named(suspects) + ", for whom " + named(missing) + " waits,";
  return join_text("no sign of ", whom, " within ", deadline_s, " s");
}

MpiJob::Blocking::Blocking(MpiJob& job, std::string place) : job_(job) {
  std::lock_guard lock(job_.mutex_);
  entry_ = job_.blocking_.emplace(job_.blocking_.end(), Clock::now() + duration_of_s(job_.deadline_s), std::move(place));
}

MpiJob::Blocking::~Blocking() {
  std::lock_guard lock(job_.mutex_);
  job_.blocking_.erase(entry_);
}

/// In the heartbeat's thread, at each beat.
void MpiJob::watch_over_blocking(Heartbeat& heartbeat) {
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
    if (!blocks) place = join_text("rank ", rank_, ": what it does");
    log::write("error", reason_.starts_with(place) ? reason_ : place + " ended: " + reason_);
    heartbeat.say_done();
  }
  // Where all live, the others give each other the grace before they say what they have to say.
  if (has_reported_ && has_had(lost.empty() && blocks ? kReport_s + kGrace_s : 0)) MPI_Abort(MPI_COMM_WORLD, 3);
}

void MpiJob::keep(SentMessage message) {
  if (delivered(message)) return;
  {
    std::lock_guard lock(mutex_);
    sent_.push_back(std::move(message));
  }
  changed_.notify_all();
}

std::vector<std::string> MpiJob::undelivered() {
  // All have ended, so what was taken has been; only the news of it may still be under way.
  constexpr double kNews_s = 1;
  std::vector<std::string> names;
  for (const Deadline deadline = Deadline::after_s(kNews_s);;) {
    (void)death();
    std::lock_guard lock(mutex_);
    if (!sent_.empty() && !deadline.passed()) continue;
    for (const SentMessage& message : sent_) names.push_back(message.name);
    return names;
  }
}

bool MpiJob::all_ended(double seconds) {
  // With a peer gone MPI is not asked any more: it would go on with exchanges whose memory went with the error that ended them.
  if (heartbeat_ && !heartbeat_->lost().empty()) return false;
  MPI_Request request;
  if (MPI_Ibarrier(notices_, &request) != MPI_SUCCESS) return false;
  Deadline deadline = Deadline::after_s(seconds + kReport_s);  // a peer that waits in vain for so long says so first
  bool hurry = false;
  for (int done = 0; !done;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    const bool dead = !death().empty();
    if (dead && !done && heartbeat_ && !heartbeat_->lost().empty()) return false;  // that one will not come
    if (dead && !hurry) {
      hurry = true;
      deadline = Deadline::after_s(kGrace_s);
    }
    if (!done && deadline.passed()) return false;
    if (!done) usleep(500);
  }
  return true;
}

std::vector<int> MpiJob::gather(int mine) {
  std::vector<int> all(static_cast<size_t>(size_));
  check_mpi(MPI_Allgather(&mine, 1, MPI_INT, all.data(), 1, MPI_INT, notices_), "MPI_Allgather");
  return all;
}

void MpiJob::close() {
  stop_moving();
  if (notice_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&notice_);
    MPI_Wait(&notice_, MPI_STATUS_IGNORE);
  }
}

void MpiJob::all_reported() {
  if (!heartbeat_) return;
  heartbeat_->say_done();
  if (!heartbeat_->all_done(kReport_s)) usleep(500000);  // those that no longer hear of each other get as long
}

bool MpiJob::is_first_alive() {
  const std::vector<int> lost = heartbeat_ ? heartbeat_->lost() : std::vector<int>{};
  for (int r = 0; r < rank_; ++r)
    if (!contains(lost, r)) return false;
  return true;
}

void MpiJob::die(const std::string& reason, bool by_peer) {
  if (dead_) return;
  dead_ = true;
  killed_by_peer_ = by_peer;
  reason_ = reason;
  died_at_ = Clock::now();
}

}  // namespace tandem::comm
