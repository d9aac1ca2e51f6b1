// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/app.h"
#include "tandem/device/process.h"

int main(int argc, char** argv) {
  tandem::device::tune_allocator();
  return tandem::cli::main(argc, argv);
}
