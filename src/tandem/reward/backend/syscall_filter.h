// SPDX-License-Identifier: Apache-2.0
#pragma once
// The system calls a confined program may make, as a seccomp filter; all others fail with EPERM.
//
// It may start threads but no process. It may open no socket but a pair of its own, and signal nobody else. It may not change a
// file's owner, mode or times, nor call by another architecture's numbers. Where Landlock guards files, it may open what Landlock
// lets it; without, it may open them for reading alone.

#include "tandem/reward/backend/process.h"

namespace tandem::reward {

/// Puts the filter into `confinement`. Errors: UserError where this processor or kernel has none.
void add_syscall_filter(Confinement& confinement, bool may_write_files);

}  // namespace tandem::reward
