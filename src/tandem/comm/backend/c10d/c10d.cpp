// SPDX-License-Identifier: Apache-2.0
// The life of a process that is a rank with a device: finds the others, and runs its part.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/backend/c10d/device_group.h"
#include "tandem/comm/backend/c10d/job.h"
#include "tandem/comm/backend/c10d/rendezvous.h"
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

// Where rank 0 opens a store for the ranks of a group: each address by which others may reach it, and a port that is free.
struct Opened {
  c10::intrusive_ptr<::c10d::Store> store;
  std::string at;
};
Opened open_store(const Group& host, double deadline_s) {
  bool is_one_machine = true;
  for (int r = 0; r < host.size(); ++r) is_one_machine &= host.machine(r) == host.machine(0);
  std::string addresses;
  for (const Address& address : chosen(own_addresses(), interface_choice(), kInterfaceVariable))
    if (address.is_loopback == is_one_machine) addresses += address.text + " ";
  if (addresses.empty())
    throw UserError(kInterfaceVariable, "names no address by which other machines reach this one", "an interface of their network");
  ::c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(deadline_s * 1000));
  try {
    const auto store = c10::make_intrusive<::c10d::TCPStore>("127.0.0.1", options);
    return {store, join_text(store->getPort(), " ", addresses)};
  } catch (const c10::Error& e) {
    throw PeerError(join_text("rank 0: the store of the devices' groups does not open: ", e.what_without_backtrace()));
  }
}

// The first address that answers.
c10::intrusive_ptr<::c10d::Store> store_beside(Group& host, double deadline_s) {
  constexpr double kLeast_s = 5;
  Opened mine;
  if (host.rank() == 0) mine = open_store(host, deadline_s);
  std::istringstream at(text_of_first(host, mine.at));
  if (mine.store) return mine.store;
  uint16_t port = 0;
  at >> port;
  const std::vector<std::string> addresses(std::istream_iterator<std::string>(at), {});
  for (size_t i = 0; i + 1 < addresses.size(); ++i) {
    try {
      return store_of({host.rank(), host.size(), 0, addresses[i], port}, kLeast_s);
    } catch (const PeerError& e) {
      log::warning(e.what());
    }
  }
  return store_of({host.rank(), host.size(), 0, addresses.at(addresses.size() - 1), port}, deadline_s);
}

class C10dBeside final : public DeviceGroups {
 public:
  C10dBeside(Group& host, at::Device device, double deadline_s)
      : host_(host),
        job_(store_beside(host, deadline_s), {nullptr, host.rank(), host.size(), "world", deadline_s}, device_library(device.index())) {
    job_.stand_beside(host);
    host.carry_by(c10d_world(job_));
  }
  ~C10dBeside() override {
    job_.leave();
    host_.carry_by(nullptr);
  }
  void end() override { job_.all_ended(); }
  void throw_death_for(const std::exception& e) override { job_.throw_death_for(e); }
  void fail(const std::string& reason) noexcept override {
    constexpr useconds_t kMoment_us = 500'000;
    job_.abort(reason);
    if (host_.rank() == 0) usleep(kMoment_us);  // the others read the reason in its store
  }

 private:
  Group& host_;
  C10dJob job_;
};

}  // namespace

std::unique_ptr<DeviceGroups> carry_by_library(Group& world, at::Device device, double deadline_s) {
  return std::make_unique<C10dBeside>(world, device, deadline_s);
}

void prepare_device_groups(double deadline_s) { set_environment(deadline_s); }

std::string c10d_library() { return device_library_name(); }

void run_c10d(double deadline_s, const RankBody& body) {
  const Rendezvous at = rendezvous([](const char* name) -> const char* { return std::getenv(name); });
  set_environment(deadline_s);
  Library library = device_library(at.local_rank);
  C10dJob job(store_of(at, deadline_s), {nullptr, at.rank, at.size, "world", deadline_s}, std::move(library));
  run_job(job, body);
}

}  // namespace tandem::comm
