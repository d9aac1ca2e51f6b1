// SPDX-License-Identifier: Apache-2.0
// The life of a process that is a rank with a device: finds the others, and runs its part.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/c10d/job.h"
#include "tandem/comm/backend/c10d/rendezvous.h"

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
    throw PeerError(join_text("rank ", at.rank, ": the ranks do not meet at ", at.host, ":", at.port, " (MASTER_ADDR, MASTER_PORT) within ",
                              deadline_s, " s: ", e.what_without_backtrace()));
  }
}

}  // namespace

std::string c10d_library() { return device_library_name(); }

void run_c10d(double deadline_s, const RankBody& body) {
  const Rendezvous at = rendezvous([](const char* name) -> const char* { return std::getenv(name); });
  Library library = device_library(at.local_rank, deadline_s);
  C10dJob job(store_of(at, deadline_s), {nullptr, at.rank, at.size, "world", deadline_s}, std::move(library));
  run_job(job, body);
}

}  // namespace tandem::comm
