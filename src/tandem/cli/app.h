// SPDX-License-Identifier: Apache-2.0
#pragma once
// The program `tandem`: finds the command, runs it, and turns what it throws into one line and an exit code.

#include "tandem/cli/command/command.h"

namespace tandem::cli {

/// Returns 0 done, 2 the user's input is wrong, 3 a peer or device failed, 1 a bug of ours, 130 interrupted. An error is the
/// line `tandem: error: WHERE: WHAT (WHAT WOULD BE RIGHT)` on standard error. The one place that catches everything.
/// `bench` makes the command of that name. Benchmarks that the program tandem-bench has are handed to it.
int main(int argc, char** argv, std::unique_ptr<Command> (*bench)() = bench_command);

}  // namespace tandem::cli
