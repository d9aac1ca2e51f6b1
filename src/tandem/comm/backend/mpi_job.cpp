// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/mpi_job.h"

#include <unistd.h>

#include <cstring>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/group.h"

namespace tandem::comm {
namespace {

constexpr double kGrace_s = 5;  // what peers get to end by themselves after an abort

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
  MPI_Comm_dup(MPI_COMM_WORLD, &notices_);
  MPI_Comm_set_errhandler(notices_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(notices_, &rank_);
  MPI_Comm_size(notices_, &size_);
  MPI_Irecv(heard_.data(), static_cast<int>(heard_.size()), MPI_CHAR, MPI_ANY_SOURCE, kNoticeTag, notices_, &notice_);
}

void MpiJob::abort(const std::string& reason) noexcept {
  std::lock_guard lock(mutex_);
  if (dead_) return;
  die(reason);
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
  if (!dead_ && notice_ != MPI_REQUEST_NULL) {
    int arrived = 0;
    if (MPI_Test(&notice_, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) {
      die(heard_.data());
      killed_by_peer_ = true;
    }
  }
  return reason_;
}

void MpiJob::keep(SentMessage message) {
  std::lock_guard lock(mutex_);
  sent_.push_back(std::move(message));
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
  MPI_Request request;
  if (MPI_Ibarrier(notices_, &request) != MPI_SUCCESS) return false;
  Deadline deadline = Deadline::after_s(seconds);
  bool hurry = false;
  for (int done = 0; !done;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    const bool dead = !death().empty();
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
  if (notice_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&notice_);
    MPI_Wait(&notice_, MPI_STATUS_IGNORE);
  }
}

void MpiJob::die(const std::string& reason) {
  dead_ = true;
  reason_ = reason;
}

}  // namespace tandem::comm
