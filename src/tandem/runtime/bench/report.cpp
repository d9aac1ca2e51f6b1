// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/bench/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/comm/launch.h"
#include "tandem/runtime/bench/bench.h"
#include "tandem/cli/machine.h"

namespace tandem::runtime {

using nlohmann::json;

namespace {

json row_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto median = [](const std::vector<double>& v) {
    const size_t n = v.size();
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
  };
  std::vector<double> deviations;
  for (double v : values) deviations.push_back(std::abs(v - median(values)));
  std::sort(deviations.begin(), deviations.end());
  return {{"median", median(values)}, {"mad", median(deviations)}, {"min", values.front()}, {"max", values.back()}, {"n", values.size()}};
}

}  // namespace

int64_t ranks_of(const BenchOptions& o) {
  if (o.ranks > 0) return o.ranks;
  return comm::mpi_launched() ? 1 : 2;
}

json bench_report(const char* name, const json& conditions, const Figures& figures) {
  json rows = json::object();
  for (const auto& [figure, values] : figures) rows[figure] = row_of(values);
  const json machine = machine_report();
  const std::string device = join_text("cpu: ", machine.at("cpu").get<std::string>(), ", ", machine.at("cores").get<int>(), " cores, ",
                                       machine.at("isa").get<std::string>());
  return {{"name", name}, {"commit", build_commit()}, {"device", device}, {"conditions", conditions}, {"machine", machine},
          {"answer_checked", true}, {"rows", rows}};
}

}  // namespace tandem::runtime
