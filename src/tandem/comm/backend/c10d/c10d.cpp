// SPDX-License-Identifier: Apache-2.0
// The life of a process that is a rank with a device: finds the others, and runs its part.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/backend/c10d/job.h"
#include "tandem/comm/backend/c10d/rendezvous.h"
#include "tandem/comm/backend/device_group.h"
#include "tandem/comm/network.h"

namespace tandem::comm {
namespace {

c10::intrusive_ptr<::c10d::Store> store_of(const Rendezvous& at, double deadline_s) {
  ::c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = at.rank == 0;
  options.numWorkers = static_cast<size_t>(at.size);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(deadline_s * 1000));
  try {
    return c10::make_intrusive<::c10d::TCPStore>(at.host, options);
  } catch (const c10::Error& e) {
    throw PeerError(join_text("rank ", at.rank, ": the ranks do not meet at ", at.host, ":", at.port, " within ", deadline_s,
                              " s: ", e.what_without_backtrace()));
  }
}

// Where rank 0 of the group opens a store: an address that the others reach, and a port that is free.
struct Opened {
  c10::intrusive_ptr<::c10d::Store> store;
  std::string at;
};
Opened open_store(const Group& host, double deadline_s) {
  bool is_one_machine = true;
  for (int r = 0; r < host.size(); ++r) is_one_machine &= host.machine(r) == host.machine(0);
  const std::vector<Address> all = chosen(own_addresses(), interface_choice(), kInterfaceVariable);
  if (all.empty()) throw UserError("network", "this machine has no address that is up", "an interface that other machines reach");
  const std::string address = is_one_machine ? "127.0.0.1" : all.front().text;
  ::c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(deadline_s * 1000));
  const auto store = c10::make_intrusive<::c10d::TCPStore>(address, options);
  return {store, join_text(address, " ", store->getPort())};
}

c10::intrusive_ptr<::c10d::Store> store_beside(Group& host, double deadline_s) {
  Opened mine;
  if (host.rank() == 0) mine = open_store(host, deadline_s);
  std::istringstream at(text_of_first(host, mine.at));
  if (mine.store) return mine.store;
  Rendezvous found{host.rank(), host.size(), 0, "", 0};
  at >> found.host >> found.port;
  return store_of(found, deadline_s);
}

}  // namespace

void with_device_library(Group& world, at::Device device, double deadline_s, const std::function<void()>& body) {
  C10dJob job(store_beside(world, deadline_s), {nullptr, world.rank(), world.size(), "world", deadline_s},
              device_library(device.index(), deadline_s));
  run_beside(world, job, body);
}

std::string c10d_library() { return device_library_name(); }

void run_c10d(double deadline_s, const RankBody& body) {
  const Rendezvous at = rendezvous([](const char* name) -> const char* { return std::getenv(name); });
  Library library = device_library(at.local_rank, deadline_s);
  C10dJob job(store_of(at, deadline_s), {nullptr, at.rank, at.size, "world", deadline_s}, std::move(library));
  run_job(job, body);
}

}  // namespace tandem::comm
