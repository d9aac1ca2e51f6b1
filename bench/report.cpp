// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/base/check.h"
#include "stages/loaded_model.h"
#include "tandem/comm/launch.h"
#include "tandem/cli/app.h"
#include "tandem/doctor/machine_report.h"
#include "tandem/device/device.h"
#include "tandem/reward/code_rule.h"

namespace tandem::bench {

using nlohmann::json;

namespace {

json summary_of(std::vector<double> values) {
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

int64_t local_ranks(int64_t wanted) {
  if (wanted > 0) return wanted;
  return comm::mpi_launched() ? 1 : 2;
}

json report(const char* name, const json& conditions, const Figures& figures) {
  json rows = json::object();
  for (const auto& [figure, values] : figures) rows[figure] = summary_of(values);
  const json machine = doctor::machine_report(reward::code_guard_text());
  const std::string device = join_text("cpu: ", machine.at("cpu").get<std::string>(), ", ", machine.at("cores").get<int>(), " cores, ",
                                       machine.at("isa").get<std::string>());
  return {{"name", name}, {"commit", cli::build_commit()}, {"device", device}, {"conditions", conditions}, {"machine", machine},
          {"answer_checked", true}, {"rows", rows}};
}

json report(const char* name, const Computing& o, json own, const Figures& figures) {
  own.update({{"model", o.model},
              {"dtype", o.dtype},
              {"device", o.device},
              {"kernels", o.kernels},
              {"parity", o.parity},
              {"seed", o.seed},
              {"repeats", o.repeats},
              {"threads", num_threads(o)}});
  json whole = report(name, own, figures);
  if (const at::Device device = device::device_named(o.device, "--device"); !device.is_cpu())
    whole["device"] = device::backend_of(device).description(device);
  return whole;
}

json lengths_summary(std::vector<int64_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  return {{"min", lengths.front()}, {"median", lengths[lengths.size() / 2]}, {"max", lengths.back()},
          {"total", std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}};
}

}  // namespace tandem::bench
