// SPDX-License-Identifier: Apache-2.0
#pragma once
// How ranks come to life: as threads of this process, as processes that this one starts, or as processes that mpirun or srun started.

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "tandem/base/clock.h"
#include "tandem/comm/group.h"

namespace tandem::comm {

using RankBody = std::function<void(Group& world)>;

/// Runs `body` on `ranks` threads of this process and joins them all. Their waits end by `clock`, which must outlive the call.
/// Errors  rethrows the exception of the rank that failed first; its peers are woken with a PeerError that names it.
void run_local(int ranks, double deadline_s, const RankBody& body, WaitClock& clock = real_clock());

/// Runs `body` as rank 0, and starts the program again, with its own arguments, for each other rank of this machine. Such a process comes
/// by the same way to this call, and runs `body` as its rank; `ranks` is then what it was started with. At most once per process, from a
/// thread that lives until the end. Ranks talk over sockets; standard input is rank 0's.
/// Errors  as run_mpi, without MPI_Abort: rank 0 waits for the others, seconds at most, and kills what does not end. PeerError, or a
///         ReportedElsewhere with its exit code, for a rank that ends before all have come; std::system_error if one cannot be started.
void run_processes(int ranks, double deadline_s, const RankBody& body);
/// True if run_processes of another process started this one, which has not come to the call yet.
bool is_started_rank();
/// Whether the ranks of the group are processes, of MPI or started by one of them. False for threads, and for one rank alone.
bool are_processes(const Group& group);

/// A group of one rank: every operation is local and returns at once.
std::unique_ptr<Group> single(const std::string& name = "single");

/// True if this program was built with TANDEM_MPI.
bool mpi_available();
/// True if a launcher (mpirun, srun) started this process as a rank.
bool mpi_launched();
/// Names the interfaces or subnets over which ranks of several machines meet (network.h); scripts/mpi --interface sets it.
inline constexpr const char* kInterfaceVariable = "TANDEM_INTERFACE";
/// The value of that variable; "" without it.
std::string interface_choice();

/// Runs `body` as this process's rank of an MPI job; at most once per process, from any one thread.
/// Errors  the lowest rank that failed by itself rethrows what `body` threw, so that one process reports it; the others get a
///         ReportedElsewhere. Before that the peers have been told, and get a PeerError naming this rank. Where a peer died, or
///         does not listen within seconds, each rank that lives logs its own error and gets a ReportedElsewhere, and the first
///         of them ends the rest of the job by MPI_Abort. PeerError also for a message that nobody took.
///         UserError naming TANDEM_MPI if the backend is not built.
void run_mpi(double deadline_s, const RankBody& body);

/// The carriers of a world and of the groups split from it: they go before it does.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;
  /// All ranks are done. Errors: PeerError for a message that nobody took.
  virtual void end() {}
  /// `e` ends this rank's part. If they were dead before, and `e` does not tell of it, it may come of worthless numbers: throws the death
  /// in its place.
  virtual void throw_death_for(const std::exception& e) {}
  /// This rank failed, and tells its peers why.
  virtual void fail(const std::string& reason) noexcept {}
};

/// A rank's device, as the groups see it (device/device.h:host_synchronizer).
struct CarriedDevice {
  at::Device device;
  std::function<void()> synchronize;  ///< waits for what is queued on it; empty unless its memory is the host's
};

/// As long as the result lives, `world` and the groups split from it carry tensors of this rank's device from device to device: by NCCL
/// or HCCL, whichever the build has, and by the ranks' own way of talking where the device's memory is the host's. Null where `device` is
/// the CPU, with one rank, and in a build without a library: then tensors go by way of the CPU. Collective.
/// Errors  PeerError if the ranks do not find each other.
std::unique_ptr<DeviceGroups> carry_devices(Group& world, const CarriedDevice& carried, double deadline_s);
/// Runs `body` so. Errors: what `body` throws, or a PeerError with the death of the groups, if that came first.
void with_device_groups(Group& world, const CarriedDevice& carried, double deadline_s, const std::function<void()>& body);
/// What the library needs to be told before a process has several threads. Before its ranks start.
void prepare_device_groups(double deadline_s);

/// The library that moves tensors between devices: "nccl" if this program was built with TANDEM_CUDA, "hccl" with TANDEM_NPU,
/// "" without either.
std::string c10d_library();

/// Runs `body` as this process's rank of a job with one device a rank, whose number is that of the rank on its machine.
/// mpirun, srun or the variables RANK, WORLD_SIZE and LOCAL_RANK say which rank it is; ranks meet at MASTER_ADDR:MASTER_PORT
/// (backend/c10d/rendezvous.h has the defaults). Nobody watches over processes: a death shows at the deadline.
/// Errors  the rank that failed first rethrows what `body` threw, another that only heard of it gets a ReportedElsewhere.
///         PeerError also for a message that nobody took. UserError naming what is missing: TANDEM_CUDA or TANDEM_NPU, a device, or
///         a variable.
void run_c10d(double deadline_s, const RankBody& body);

}  // namespace tandem::comm
