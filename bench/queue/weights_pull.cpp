// SPDX-License-Identifier: Apache-2.0
#include "queue/weights_pull.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "report.h"
#include "tandem/device/process.h"
#include "tandem/model/config.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/model/parameters.h"
#include "tandem/pull/passing_source.h"
#include "tandem/pull/weight_server.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

constexpr double kPullDeadlineS = 120;

// A run of one rank, and values that depend on the version alone.
struct Publisher {
  Publisher(const model::ModelConfig& model, at::ScalarType dtype)
      : config(model), table(model::parameter_table(model, {}, 0)), dtype(dtype), server(table, dtype, "tcp://127.0.0.1:0") {}
  at::Tensor values(int64_t version) const {
    at::Tensor all = at::zeros({table.num_elements}, dtype);
    model::initialize_parameters(table, all, static_cast<uint64_t>(version), 0.02);
    return all;
  }
  /// As seen by a reader of this machine; or `far`, by another name of the machine, which does not say that memory can be shared.
  pull::WeightHolder holder(bool far) const {
    std::string place = server.place();
    if (far) place.replace(0, std::string("tcp://127.0.0.1").size(), "tcp://0x7f000001");
    return {place, {}, 0, dtype};
  }

  const model::ModelConfig config;
  const model::ParameterTable table;
  const at::ScalarType dtype;
  pull::WeightServer server;
};

struct PullingWorker {
  PullingWorker(const Publisher& run, bool far)
      : values(at::zeros({run.table.num_elements}, run.dtype)),
        source(run.table, model::family::parameters(run.config), {run.holder(far)}, {kPullDeadlineS, far ? "0x7f000001" : ""}) {}
  at::Tensor values;
  pull::PassingSource source;
};

}  // namespace

void describe(OptionVisitor& field, WeightsPullOptions& o) {
  field("workers", o.workers, "Workers that fetch each version", at_least(1));
  describe(field, static_cast<Common&>(o));
}

nlohmann::json weights_pull(const WeightsPullOptions& o) {
  if (o.threads > 0) device::set_compute_threads(static_cast<int>(o.threads));
  Publisher run(model::read_config(o.model), model::dtype_of(o.dtype, "--dtype"));
  const double bytes = static_cast<double>(run.table.num_elements * static_cast<int64_t>(c10::elementSize(run.dtype)));
  Figures figures;
  int64_t version = 0;
  const auto fetch = [&](std::vector<std::unique_ptr<PullingWorker>>& workers, const at::Tensor& expected) {
    const double begin_s = now_s();
    std::vector<std::thread> threads;
    for (const auto& each : workers)
      threads.emplace_back([&worker = *each, &version] {
        const bool is_whole = worker.source.fetch(PolicyVersion{version}, worker.values).is_whole;
        TANDEM_CHECK(is_whole, "version ", version, " did not come");
      });
    for (std::thread& each : threads) each.join();
    const double seconds = now_s() - begin_s;
    for (const auto& each : workers) TANDEM_CHECK(at::equal(each->values, expected), "other weights than were published");
    return seconds;
  };
  const auto measure = [&](bool far, int64_t num_workers, const std::string& name) {
    std::vector<std::unique_ptr<PullingWorker>> workers;
    for (int64_t i = 0; i < num_workers; ++i) workers.push_back(std::make_unique<PullingWorker>(run, far));
    for (int64_t i = 0; i <= o.repeats; ++i) {
      const at::Tensor values = run.values(++version);
      const pull::WeightServerCounts before = run.server.counts();
      const double begin_s = now_s();
      run.server.publish(values, PolicyVersion{version});
      const double published_s = now_s() - begin_s, fetched_s = fetch(workers, values);
      if (i == 0) continue;
      const pull::WeightServerCounts after = run.server.counts();
      figures["publish_mb_s"].push_back(bytes / 1e6 / published_s);
      figures[name + "_mb_s"].push_back(bytes / 1e6 / fetched_s);
      figures[name + "_copies_made"].push_back(static_cast<double>(after.bytes_copied - before.bytes_copied) / bytes);
      figures[name + "_copies_sent"].push_back(static_cast<double>(after.bytes_sent - before.bytes_sent) / bytes);
    }
  };
  measure(false, 1, "mapped_1");
  measure(false, o.workers, "mapped_all");
  measure(true, 1, "sockets_1");
  measure(true, o.workers, "sockets_all");
  const json conditions{{"model", o.model}, {"dtype", o.dtype}, {"mb", bytes / 1e6}, {"workers", o.workers}, {"repeats", o.repeats}};
  return report("weights_pull", conditions, figures);
}

}  // namespace tandem::bench
