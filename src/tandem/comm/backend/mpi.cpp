// SPDX-License-Identifier: Apache-2.0
// A process that mpirun or srun started as a rank.
#include <mpi.h>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/mpi_transport.h"
#include "tandem/comm/backend/process/process_group.h"
#include "tandem/comm/backend/process/process_job.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

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
  MpiTransport transport;
  run_as_rank(transport, deadline_s, body);
}

}  // namespace tandem::comm
