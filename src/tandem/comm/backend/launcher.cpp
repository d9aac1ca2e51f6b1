// SPDX-License-Identifier: Apache-2.0
// Recognises the launchers by the variables they set for each process.
#include <cstdlib>
#include <string>

#include "tandem/comm/launch.h"

namespace tandem::comm {

bool mpi_launched() {
  auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : 0;
  };
  if (number("OMPI_COMM_WORLD_SIZE") > 0 || number("PMI_SIZE") > 0) return true;
  // A batch job also has SLURM_NTASKS in its script; only srun with PMIx gives the process a rank.
  return number("SLURM_NTASKS") > 0 && std::getenv("PMIX_RANK") != nullptr;
}

std::string interface_choice() {
  const char* choice = std::getenv(kInterfaceVariable);
  return choice ? choice : "";
}

}  // namespace tandem::comm
