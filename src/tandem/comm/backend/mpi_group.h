// SPDX-License-Identifier: Apache-2.0
#pragma once
// The world of an MPI job as a group.

#include <memory>

#include "tandem/comm/backend/mpi_job.h"
#include "tandem/comm/group.h"

namespace tandem::comm {

// Collectives number themselves below the first tag of messages.
inline constexpr int kFirstMessageTag = 1 << 15;
inline constexpr int kTags = kFirstMessageTag + kMaxTag + 1;

/// All processes of the job, which must outlive the group and those split from it. Collective.
std::unique_ptr<Group> mpi_world(MpiJob& job);

}  // namespace tandem::comm
