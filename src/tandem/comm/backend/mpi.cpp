// SPDX-License-Identifier: Apache-2.0
// The life of a process that is a rank of an MPI job, from MPI_Init to which rank reports an error.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/backend/mpi_group.h"
#include "tandem/comm/backend/mpi_job.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

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

void check_tags() {
  void* bound = nullptr;
  int is_set = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &is_set), "MPI_Comm_get_attr");
  if (!is_set || *static_cast<int*>(bound) < kTags)
    throw UserError("MPI", join_text("this library has fewer than ", kTags, " message tags"), "use Open MPI or MPICH");
}

}  // namespace

bool mpi_available() { return true; }

void run_mpi(double deadline_s, const RankBody& body) {
  int level = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  if (level < MPI_THREAD_MULTIPLE)
    throw UserError("MPI", "this library does not support MPI_THREAD_MULTIPLE", "use an MPI that was built with thread support");
  check_tags();
  MpiJob job(deadline_s);
  std::exception_ptr error;
  int cause = 0;
  try {
    const std::unique_ptr<Group> world = mpi_world(job);
    body(*world);
  } catch (...) {
    error = std::current_exception();
    (void)job.death();  // takes what peers have said
    cause = cause_of(error, job.killed_by_peer());
    job.abort(join_text("rank ", job.rank(), " failed: ", what_of(error)));
  }
  if (!job.all_ended(deadline_s)) {
    // MPI can no longer end as it should. Whoever lives says why before the launcher is told to end the rest.
    const std::string reason = error ? what_of(error) : join_text("rank ", job.rank(), ": a peer did not end: ", job.death());
    log::write("error", reason);
    job.all_reported();
    if (job.is_first_alive()) {
      usleep(500000);  // the others leave with an exit code of their own
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
    throw ReportedElsewhere(3, reason);
  }
  const std::string death = job.death();
  if (!error && death.empty()) {
    if (const std::vector<std::string> lost = job.undelivered(); !lost.empty()) {
      error = std::make_exception_ptr(PeerError(lost.front() + ": nobody took the message"));
      cause = cause_of(error, false);
    }
  }
  const std::vector<int> causes = job.gather(cause);
  job.close();
  MPI_Finalize();
  const auto first = std::find_if(causes.begin(), causes.end(), [](int code) { return code != 0; });
  if (first != causes.end() && first - causes.begin() != job.rank())
    throw ReportedElsewhere(*first, error ? what_of(error) : join_text("rank ", job.rank(), " ended, but: ", death));
  if (error) std::rethrow_exception(error);
  if (!death.empty()) throw PeerError(join_text("rank ", job.rank(), " ended, but: ", death));
}

}  // namespace tandem::comm
