// SPDX-License-Identifier: Apache-2.0
#pragma once
// A process that generates for a run without being a rank of it: `tandem rollout --join`. It comes and goes as it likes. What it leaves
// unfinished goes on elsewhere, from the tokens that it reported.

#include <cstdint>
#include <functional>
#include <string>

#include "tandem/base/error.h"
#include "tandem/worker/generator.h"

namespace tandem::worker {

struct JoinRequest {
  std::string address;      ///< HOST:PORT of the run, as its log says it
  std::string token;        ///< its token
  GeneratorOptions generator;   ///< with host "": that from which this machine reaches the run, loopback where the run is here
  double patience_s = 600;  ///< for which it waits for a run that does not answer
  StopRequested stop;       ///< may be empty
};

/// What it did, over all starts of the run.
struct WorkerSummary {
  int64_t groups = 0;       ///< that the run took
  int64_t late = 0;         ///< of no use: another had finished it, the run had given it up, or it was filtered
  int64_t tokens = 0;       ///< drawn
  int64_t versions = 0;     ///< of the weights that it took
  bool was_stopped = false;
};

/// What people write without `tcp://`, with it.
std::string endpoint_of(const std::string& address);
/// At which the run reaches a process of this machine that joins it at `address`: `asked`, if something is. Errors: UserError as
/// comm::local_host_towards.
std::string host_for(const std::string& address, const std::string& asked);
/// For ClientOptions::waits: tells the log that the run at `address` is waited for, for so long at most.
std::function<void(double)> says_that_it_waits(const std::string& address, double patience_s);

/// Generates until the run is over, or it is asked to stop: then it reports what it has, and leaves. Where the run goes on from a
/// checkpoint, it joins anew.
/// Blocking   until then. A run that is silent for patience_s is an error.
/// Errors     as Generator; the run hears of it, too.
WorkerSummary generate_for_run(const JoinRequest& request);

}  // namespace tandem::worker
