// SPDX-License-Identifier: Apache-2.0
#pragma once
// The workers that a run starts on its own machine, and starts again.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/reward/backend/process.h"

namespace tandem::worker {

/// Ownership  of the processes: they end with it.
/// Threads    one.
/// Errors     UserError if one cannot be started. PeerError, with the last words of a log, where they end again and again.
class LocalWorkers {
 public:
  /// Starts workers.local of them, which join at `address` (HOST:PORT), with the token in the run's folder.
  LocalWorkers(const config::RunConfig& config, std::string address);

  /// To be called again and again: who ended is started again, at once the first time, then after a growing pause. `num_finished`: groups
  /// so far, by whomever. While it stands still all ends count, and too many of them are an error.
  void check(int64_t num_finished);
  /// For so long they may end by themselves.
  void wait_ended(double seconds);

 private:
  struct Place {
    reward::Process process;
    double started_s = 0, next_start_s = 0;
    bool has_ended = false;
    int64_t num_ends = 0;  // in a row, each soon after a start
  };
  void start(size_t number);
  reward::Process process(size_t number) const;
  std::string log_of(size_t number) const;

  const config::RunConfig& config_;
  const std::string address_;
  std::vector<Place> places_;
  int64_t num_ends_ = 0, num_finished_ = 0;  // the former since the latter grew
};

}  // namespace tandem::worker
