// SPDX-License-Identifier: Apache-2.0
// Takes the place of mpi.cpp when TANDEM_MPI is off.
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {

bool mpi_available() { return false; }

void run_mpi(double, const RankBody&) {
  throw UserError("MPI", "this program was built without it", "configure with -DTANDEM_MPI=ON, or use --ranks N for ranks on this machine");
}

}  // namespace tandem::comm
