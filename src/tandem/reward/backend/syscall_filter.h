// SPDX-License-Identifier: Apache-2.0
#pragma once
// The system calls a confined program may make, as a seccomp filter; all others fail with EPERM.
//
// No new process (threads are allowed), no socket but a pair of its own, no signal to anyone else, no change of a file's
// owner, mode or times, no call by another architecture's numbers. Where files are guarded by Landlock, it may open them as
// Landlock lets it; without, it may open them for reading alone.

#include "tandem/reward/backend/process.h"

namespace tandem::reward {

/// Puts the filter into `confinement`. Errors: UserError where this processor or kernel has none.
void add_syscall_filter(Confinement& confinement, bool may_write_files);

}  // namespace tandem::reward
