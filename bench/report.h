// SPDX-License-Identifier: Apache-2.0
#pragma once
// The object that every benchmark prints.

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>
#include <vector>

#include "options.h"

namespace tandem::bench {

/// Values of the measured repeats, by the name of the figure.
using Figures = std::map<std::string, std::vector<double>>;

/// Name, commit, device, `conditions`, machine, `answer_checked`, and under `rows` each figure's median, mad, min, max and n.
nlohmann::json report(const char* name, const nlohmann::json& conditions, const Figures& figures);
/// The same with what every benchmark that computes with a model has read; `own` holds the conditions of this one alone.
nlohmann::json report(const char* name, const Computing& options, nlohmann::json own, const Figures& figures);

/// What several lengths were, without the list.
nlohmann::json lengths_summary(std::vector<int64_t> lengths);

/// Ranks for runtime::launch_ranks, which refuses a number under a launcher: those wanted, or two for 0.
int64_t local_ranks(int64_t wanted);

}  // namespace tandem::bench
