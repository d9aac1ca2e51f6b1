// SPDX-License-Identifier: Apache-2.0
#pragma once
// The suites `losses` and `staleness`: files of tests/oracles/losses against algo and queue, in fp64.

#include <nlohmann/json_fwd.hpp>

#include <string>

#include "oracle/report.h"

namespace tandem::cli {

/// The list `cases` of a file. Errors: UserError naming the file that has none.
const nlohmann::json& cases_of(const nlohmann::json& file, const std::string& file_name);

/// `file_name` says which formula the cases of `file` are about, such as "policy_loss.json". Without one this build skips the file
/// case by case.
void run_losses(const nlohmann::json& file, const std::string& file_name, Report& report);

/// AReaL's capacity, event by event.
void run_staleness(const nlohmann::json& file, const std::string& file_name, Report& report);

}  // namespace tandem::cli
