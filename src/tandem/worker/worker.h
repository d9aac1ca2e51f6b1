// SPDX-License-Identifier: Apache-2.0
#pragma once
// A process that generates for a run without being a rank of it: `tandem rollout --join`. It comes and goes as it likes. What it leaves
// unfinished goes on elsewhere, from the tokens that it reported.

#include <cstdint>
#include <string>

#include "tandem/base/error.h"
#include "tandem/worker/generator.h"

namespace tandem::worker {

struct JoinRequest {
  std::string address;      ///< HOST:PORT of the run, as its log says it
  std::string token;        ///< its token; "" where it has none
  GeneratorOptions generator;
  double patience_s = 600;  ///< for which it waits for a run that does not answer
  StopRequested stop;       ///< may be empty
};

/// What it did, over all starts of the run.
struct WorkerSummary {
  int64_t groups = 0;       ///< that the run took
  int64_t late = 0;         ///< that another had finished, or the run had given up
  int64_t tokens = 0;       ///< drawn
  int64_t versions = 0;     ///< of the weights that it took
  bool was_stopped = false;
};

/// What people write without `tcp://`, with it.
std::string endpoint_of(const std::string& address);

/// Generates until the run is over, or it is asked to stop: then it reports what it has, and leaves. Where the run goes on from a
/// checkpoint, it joins anew.
/// Blocking   until then. A run that is silent for patience_s is an error.
/// Errors     as Generator; the run hears of it, too.
WorkerSummary generate_for_run(const JoinRequest& request);

}  // namespace tandem::worker
