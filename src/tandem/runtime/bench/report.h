// SPDX-License-Identifier: Apache-2.0
#pragma once
// The object that every benchmark prints.

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>
#include <vector>

namespace tandem::runtime {

/// Values of the measured repeats, by the name of the figure.
using Figures = std::map<std::string, std::vector<double>>;

struct BenchOptions;
/// For launch_ranks, which refuses a number under a launcher.
int64_t ranks_of(const BenchOptions& options);

/// Name, commit, device, `conditions`, machine, `answer_checked`, and under `rows` each figure's median, mad, min, max and n.
nlohmann::json bench_report(const char* name, const nlohmann::json& conditions, const Figures& figures);

}  // namespace tandem::runtime
