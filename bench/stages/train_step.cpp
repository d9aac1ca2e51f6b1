// SPDX-License-Identifier: Apache-2.0
#include "stages/train_step.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "tandem/algo/algorithm.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "stages/loaded_model.h"
#include "report.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"
#include "tandem/model/flops.h"
#include "tandem/train/balance.h"
#include "tandem/train/trainer.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

// The most this process ever held in memory, loading and the check of the answer included: what an arena does not count shows here.
double peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmHWM:")) {
  }
  TANDEM_CHECK(status.good(), "/proc/self/status has no VmHWM");
  return 1024 * std::stod(line.substr(6));
}

model::TokenWork work_of(int64_t length) {
  model::TokenWork work;
  work.add(length);
  return work;
}

// Random sequences with random advantages, as rows of a training step.
struct TrainWork {
  std::vector<std::vector<int32_t>> ids;
  std::vector<float> behavior;
  std::vector<train::Row> rows;
  model::TokenWork work;
  double response_tokens = 0;

  TrainWork(const LoadedModel& loaded, const TrainStepOptions& o) {
    const auto longest = static_cast<size_t>(*std::max_element(o.lengths.begin(), o.lengths.end()));
    behavior.assign(longest, static_cast<float>(-std::log(loaded.model.config().vocab_size)));
    RandomStream random(static_cast<uint64_t>(o.seed), 1);
    rows.resize(o.lengths.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t n = o.prompt_len + o.lengths[i], context = loaded.model.config().max_positions;
      if (n > context)
        throw UserError("--lengths", join_text("element ", i, " is ", o.lengths[i], ", behind a prompt of ", o.prompt_len),
                        join_text("together at most the model's context of ", context));
      ids.push_back(loaded.random_ids(n, i));
      rows[i].prompt = std::span(ids[i]).first(static_cast<size_t>(o.prompt_len));
      rows[i].response = std::span(ids[i]).subspan(static_cast<size_t>(o.prompt_len));
      rows[i].behavior = std::span(behavior).first(rows[i].response.size());
      rows[i].advantages.assign(rows[i].response.size(), static_cast<float>(random.normal()));
      work.add(n);
      response_tokens += static_cast<double>(o.lengths[i]);
    }
  }
};

// Log-probabilities of the packed step against those of each sequence alone; `rows` are those that this rank tells.
void check_trained(const TrainStepOptions& o, std::span<const size_t> rows, const std::vector<std::vector<float>>& alone,
                   const std::vector<std::vector<float>>& packed) {
  const double bound = o.dtype == "float32" ? 1e-3 : 0.25;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float>& want = alone[rows[i]];
    for (size_t t = 0; t < want.size(); ++t)
      TANDEM_CHECK(std::abs(want[t] - packed[i][t]) <= bound, "packed against alone: ", packed[i][t], ", ", want[t]);
  }
}

// The rows of a data-parallel rank, dealt level.
std::vector<size_t> rows_of_rank(const TrainWork& w, const model::ModelConfig& config, const model::Layout& layout, int rank) {
  std::vector<double> costs;
  for (const std::vector<int32_t>& ids : w.ids) costs.push_back(model::training_flops(config, work_of(std::ssize(ids))));
  const std::vector<int> owner = train::balance(costs, layout.dp);
  std::vector<size_t> mine;
  for (size_t i = 0; i < owner.size(); ++i)
    if (owner[i] == layout.dp_rank(rank)) mine.push_back(i);
  return mine;
}

struct TrainBench {
  const TrainStepOptions& options;
  const train::Options train;
  const model::Layout layout;
  const TrainWork& work;
  const std::vector<std::vector<float>>& alone;  // log-probabilities of each sequence
};

// Seconds of each measured step, and the peaks of this rank's arena; of rank 0 where the ranks differ.
void train_on_rank(const TrainBench& b, const model::kernel::Kernels& kernels, comm::Group& world, Figures& figures) {
  const TrainStepOptions& o = b.options;
  device::set_compute_threads(std::max(1, num_threads(o) / world.size()));
  comm::Mesh mesh(world, model::mesh_sizes(b.layout));
  device::Arena arena("device", 0, kernels.device()), host("host");
  model::ModelOnRank model(model::read_config(o.model), model::place_in(b.layout, mesh), kernels, {arena, "weights"});
  model.load(o.model);
  train::Trainer trainer(b.train, {model.table(), model.decoder(), model.values(), train::Ranks::in(mesh, model.config()), arena, {}, 0,
                                   &host});
  trainer.start();
  const std::vector<size_t> mine = rows_of_rank(b.work, model.config(), b.layout, world.rank());
  std::vector<train::Row> rows;
  for (size_t i : mine) rows.push_back(b.work.rows[i]);
  const algo::Algorithm algorithm = algo::algorithm_of(algo::named_algorithm("grpo"));
  for (int64_t i = 0; i <= o.repeats; ++i) {
    world.barrier();
    const double begin = now_s();
    const train::StepReport step = trainer.policy_step(rows, algorithm, 1.0, 1e-6);
    const double seconds = now_s() - begin;
    if (i == 0 && b.layout.speaks(world.rank())) check_trained(o, mine, b.alone, step.logprobs);
    if (i == 0 || world.rank() != 0) continue;  // the first is the warm-up
    figures["step_s"].push_back(seconds);
    figures["peak_bytes"].push_back(static_cast<double>(arena.peak_bytes()));
    figures["activation_peak_bytes"].push_back(static_cast<double>(step.activation_peak_bytes));
    figures["peak_rss_bytes"].push_back(peak_rss_bytes());
  }
}

}  // namespace

void describe(OptionVisitor& field, TrainStepOptions& o) {
  field("prompt_len", o.prompt_len, "Tokens of a prompt", at_least(1));
  field("micro_batch_tokens", o.micro_batch_tokens, "Packed tokens of one pass; 0 takes the default of training", at_least(0));
  field("train_layout", o.train_layout, "Layout such as dp2 or tp2,pp2, of ranks that share the threads");
  field("recompute", o.recompute, "What the backward pass computes again", one_of({"none", "selective", "full"}));
  field("swap_optimizer", o.swap_optimizer, "Keep the optimizer's state in host memory");
  describe(field, static_cast<Computing&>(o));
}

json train_step(const TrainStepOptions& o) {
  if (o.lengths.empty()) throw UserError("--lengths", "is missing", "a JSON array of response lengths");
  train::Options options;
  if (o.micro_batch_tokens > 0) options.micro_batch_tokens = o.micro_batch_tokens;
  options.recompute = o.recompute;
  options.swap_optimizer = o.swap_optimizer;
  const model::ModelConfig config = model::read_config(o.model);
  constexpr double kDeadlineS = 3600;
  comm::prepare_device_groups(kDeadlineS);
  const model::Layout layout = model::parse_layout(o.train_layout, "--train-layout");
  model::check_layout(layout, config, model::Use::kTraining, "--train-layout");
  std::optional<LoadedModel> loaded(std::in_place, o);
  const TrainWork w(*loaded, o);
  const auto separate = train::score(loaded->model.decoder(), loaded->model.parameters(), w.rows, 1.0, 1);
  const model::kernel::Kernels kernels = loaded->kernels;
  loaded.reset();  // its weights are not those that are trained
  Figures figures;
  comm::run_local(layout.world(), kDeadlineS, [&](comm::Group& world) {
    const at::Device device = device::device_named(o.device, "--device", world.rank(), world.size());
    if (device.type() != kernels.device().type())
      throw UserError("--train-layout", join_text(o.train_layout, " has ", world.size(), " ranks, more than devices here"), "--device cpu");
    device::backend_of(device).use(device);
    comm::with_device_groups(world, {device, device::host_synchronizer(device)}, kDeadlineS,
                             [&] { train_on_rank({o, options, layout, w, separate}, kernels.on(device), world, figures); });
  });
  const double needed = model::needed_flops(config, w.work, w.response_tokens), by_verl = model::training_flops(config, w.work);
  for (double seconds : std::vector(figures["step_s"])) {
    figures["tokens_per_s"].push_back(w.work.tokens / seconds);
    figures["needed_gflops"].push_back(needed / seconds / 1e9);
    for (const char* name : {"verl_gflops", "gflops"})  // the latter is the name that comparisons with other systems ask for
      figures[name].push_back(by_verl / seconds / 1e9);
  }
  return report("train_step", o, {{"sequences", w.rows.size()}, {"prompt_len", o.prompt_len}, {"lengths", lengths_summary(o.lengths)},
                                  {"micro_batch_tokens", options.micro_batch_tokens}, {"train_layout", model::to_string(layout)},
                                  {"recompute", o.recompute}, {"swap_optimizer", o.swap_optimizer}}, figures);
}

}  // namespace tandem::bench
