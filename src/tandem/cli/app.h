// SPDX-License-Identifier: Apache-2.0
#pragma once
// The program `tandem`: finds the command, runs it, and turns what it throws into one line and an exit code.

#include "tandem/cli/command/command.h"

namespace tandem::cli {

/// Returns 0 done, 2 the user's input is wrong, 3 a peer or device failed, 1 a bug of ours, 130 interrupted. An error is the
/// line `tandem: error: WHERE: WHAT (WHAT WOULD BE RIGHT)` on standard error. The one place that catches everything.
/// The git commit that the program was built from, `-dirty` behind it where tracked files were changed; "unknown" outside git.
const char* build_commit();
/// `bench` makes the command of that name, in the program tandem-bench; others hand it over to that.
int main(int argc, char** argv, std::unique_ptr<Command> (*bench)() = nullptr);

}  // namespace tandem::cli
