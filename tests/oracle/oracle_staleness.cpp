// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "oracle/oracle_losses.h"

namespace tandem::cli {
namespace {

// AReaL's capacity (StalenessManager): how many rollouts may be submitted now. It counts samples since the start of the run, where
// queue/admission.h counts groups until the update that trains them is committed.
struct Capacity {
  int64_t max_concurrent, batch_size, max_staleness;

  int64_t operator()(int64_t version, int64_t running, int64_t accepted) const {
    const int64_t by_concurrency = std::max<int64_t>(1, max_concurrent) - running;
    const int64_t by_staleness = (max_staleness + version + 1) * std::max<int64_t>(1, batch_size) - (accepted + running);
    return std::min(by_concurrency, by_staleness);
  }
  int64_t pending_limit() const { return (max_staleness + 1) * batch_size; }
};

}  // namespace

void run_staleness(const nlohmann::json& file, const std::string& file_name, Report& report) {
  for (const nlohmann::json& c : cases_of(file, file_name)) {
    const nlohmann::json& config = c.at("config");
    const Capacity capacity = {config.at("max_concurrent"), config.at("batch_size"), config.at("max_staleness")};
    int64_t version = 0, running = 0, accepted = 0;
    std::vector<int64_t> seen = {capacity(version, running, accepted)};
    for (const std::string event : c.at("inputs").at("events")) {
      if (event == "submit") ++running;
      if (event == "accept") --running, ++accepted;
      if (event == "reject") --running;
      if (event.starts_with("version=")) version = std::stoll(event.substr(8));
      seen.push_back(capacity(version, running, accepted));
    }
    const auto expected = c.at("expected").at("capacity_at_start_and_after_each_event").get<std::vector<int64_t>>();
    const int64_t limit = c.at("expected").at("pending_limit");
    if (seen != expected)
      report.fail(c.at("name"), "capacities " + nlohmann::json(seen).dump() + ", expected " + nlohmann::json(expected).dump());
    else if (capacity.pending_limit() != limit)
      report.fail(c.at("name"), join_text("pending limit ", capacity.pending_limit(), ", expected ", limit));
    else
      report.pass();
  }
}

}  // namespace tandem::cli
