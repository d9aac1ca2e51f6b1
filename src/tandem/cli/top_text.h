// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `tandem top` shows of a run: ranks, queue and lag, as lines for a terminal.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::cli {

/// `run`, `metrics` and `timeline` are what board/run_folder.h:RunFolder gives: of the lines of metrics the last counts. Lines of at most
/// `width` characters.
std::string top_text(const nlohmann::json& run, const nlohmann::json& metrics, const nlohmann::json& timeline, int64_t width);

}  // namespace tandem::cli
