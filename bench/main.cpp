// SPDX-License-Identifier: Apache-2.0
// tandem-bench, to which `tandem bench` hands its arguments.
#include "benchmarks.h"
#include "tandem/cli/app.h"
#include "tandem/device/process.h"

int main(int argc, char** argv) {
  tandem::device::tune_allocator();
  return tandem::cli::main(argc, argv, tandem::cli::benchmarks);
}
