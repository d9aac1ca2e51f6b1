// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/c10d/rendezvous.h"

#include <charconv>
#include <cstring>
#include <initializer_list>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::comm {
namespace {

constexpr int kDefaultPort = 29500;

std::optional<int> number(const Variable& variable, const char* name, int least, int most) {
  const char* text = variable(name);
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < least || value > most)
    throw UserError(name, join_text("'", text, "' is not a number from ", least, " to ", most), "what the launcher sets");
  return value;
}

std::optional<int> first_of(const Variable& variable, std::initializer_list<const char*> names, int least) {
  for (const char* name : names)
    if (const auto value = number(variable, name, least, 1 << 24)) return value;
  return std::nullopt;
}

/// The first machine of `node[003-007,12],other1`, which is node003.
std::string first_machine(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  std::string machine = list.substr(0, end);
  if (end == std::string::npos || list[end] == ',') return machine;
  return machine + list.substr(end + 1, list.find_first_of("-,]", end + 1) - end - 1);
}

std::string host_of_rank_0(const Variable& variable, int size) {
  if (const char* host = variable("MASTER_ADDR")) return host;
  const char* machines = variable("SLURM_STEP_NODELIST");
  if (machines && *machines) return first_machine(machines);
  if (size == 1 || first_of(variable, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1) == size) return "127.0.0.1";
  throw UserError("MASTER_ADDR", "not set, and the ranks are on several machines", "the address of the machine with rank 0");
}

}  // namespace

Rendezvous rendezvous(const Variable& variable) {
  const auto rank = first_of(variable, {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, 0);
  const auto size = first_of(variable, {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}, 1);
  if (!rank || !size) throw UserError("RANK and WORLD_SIZE", "not set", "start the ranks with mpirun or srun, or set both");
  if (*rank >= *size) throw UserError("RANK", join_text("is ", *rank, " in a job of ", *size), "below WORLD_SIZE");
  const auto local = first_of(variable, {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0);
  if (!local && *size > 1) throw UserError("LOCAL_RANK", "not set", "the number of this rank among those of its machine");
  const int port = number(variable, "MASTER_PORT", 1, 65535).value_or(kDefaultPort);
  return {*rank, *size, local.value_or(0), host_of_rank_0(variable, *size), static_cast<uint16_t>(port)};
}

}  // namespace tandem::comm
