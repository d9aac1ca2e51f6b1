// SPDX-License-Identifier: Apache-2.0
// One process of a job in which one rank fails: comm_fault_rank KIND OPERATION GROUP CULPRIT SEED DEADLINE_S FOLDER RANKS, of which the
// first starts the others; 0 RANKS: a launcher has started them.
// It leaves FOLDER/pid.RANK and, if it ends by itself, FOLDER/end.RANK: its exit code and its error.
#include <csignal>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "../comm_operation.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

struct Fault {
  std::string kind, folder;
  int operation, group, culprit;
  uint64_t seed;
  double deadline_s;
  int started_ranks;
};

void inject(const Fault& fault) {
  std::cerr << "FAULT" << std::endl;
  if (fault.kind == "kill") raise(SIGKILL);
  if (fault.kind == "stop") {
    raise(SIGSTOP);
    return;
  }
  if (fault.kind == "throw" || fault.kind == "within") throw PeerError("injected");
  const double seconds = fault.kind == "slow" ? 0.5 * fault.deadline_s : fault.deadline_s + 1;
  usleep(static_cast<useconds_t>(seconds * 1e6));
}

/// What a split does before it makes the group, and no more: the peers wait in MPI for a rank that does not come.
void begin_split(Group& group) {
  at::Tensor all = at::empty({group.size()}, at::kInt);
  group.all_gather(all, at::full({1}, group.rank() / 2, at::kInt));  // into the part that comm_operation.h asks for
}

/// The same random operations on all ranks; the culprit fails before one of the kind asked for, or within it. A slow one goes on.
void run(Group& world, const Fault& fault) {
  std::ofstream(fault.folder + "/pid." + std::to_string(world.rank())) << getpid();
  auto half = world.split(world.rank() / 2, "half"), cross = world.split(world.rank() % 2, "cross");
  Group* const groups[] = {&world, half.get(), cross.get()};
  RandomStream random(fault.seed, 0);
  const int64_t fault_step = 3 + random.below(20);
  for (int64_t step = 0; step < fault_step + 20; ++step) {
    int64_t operation = random.below(kNumOperations), group = random.below(3);
    if (step == fault_step) {
      operation = fault.operation, group = fault.group;
      if (world.rank() == fault.culprit && fault.kind == "within") begin_split(*groups[group]);
      if (world.rank() == fault.culprit) inject(fault);
    }
    if (!operation_is_right(*groups[group], static_cast<Operation>(operation))) throw InternalError("a wrong result");
  }
  world.barrier();
}

int guarded_run(const Fault& fault) {
  int code = 0, rank = -1;
  std::string error;
  const RankBody body = [&](Group& world) {
    rank = world.rank();
    run(world, fault);
  };
  try {
    fault.started_ranks > 0 ? run_processes(fault.started_ranks, fault.deadline_s, body) : run_mpi(fault.deadline_s, body);
  } catch (const std::exception& e) {
    code = exit_code_of(e);
    error = e.what();
  }
  std::ofstream(fault.folder + "/end." + std::to_string(rank)) << code << " " << error;
  return code;
}

int operation_of(const std::string& name) {
  for (int op = 0; op < kNumOperations; ++op)
    if (name == operation_name(static_cast<Operation>(op))) return op;
  throw UserError("comm_fault_rank", "no operation " + name, "such as all_reduce");
}

}  // namespace
}  // namespace tandem::comm

int main(int argc, char** argv) {
  using namespace tandem::comm;
  if (argc != 9) return 2;
  return guarded_run({argv[1], argv[7], operation_of(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]),
                      std::strtoull(argv[5], nullptr, 10), std::atof(argv[6]), std::atoi(argv[8])});
}
