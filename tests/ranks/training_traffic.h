// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one training step sends, by formula: what traffic_test.cpp holds the counts against. docs/communication.md has the formulas.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tandem/planner/memory.h"

namespace tandem::test {

/// One micro-batch as a rank has it.
struct PassTraffic {
  int64_t tokens = 0;            ///< T
  int64_t wanted = 0;            ///< R
  int64_t most_tokens = 0;       ///< T of the context-parallel rank with most; as `tokens` without cp
  int64_t most_wanted = 0;
};

/// Rows to routed experts, over all micro-batches and sparse layers of a step.
struct RoutedRows {
  int64_t out = 0;  ///< of this rank's tokens to experts of other ranks
  int64_t in = 0;   ///< from other ranks to experts held here
};

/// Bytes that a rank sends to others in a training step without recompute and adapters, by axis (comm/mesh.h:axis_name), the sums of
/// gradients among them: "tp", "cp", "pp", "etp", "ep", "data", "expert_data", and "tied" for an embedding on two stages. Counters of a few
/// bytes over the world are left out.
std::map<std::string, int64_t> training_traffic(const planner::TrainingPlan& plan, int rank, const std::vector<PassTraffic>& passes,
                                                const RoutedRows& routed);

}  // namespace tandem::test
