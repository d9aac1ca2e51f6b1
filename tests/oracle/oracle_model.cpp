// SPDX-License-Identifier: Apache-2.0
#include "oracle/oracle_model.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/checkpoint/safetensors.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/mesh.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/rollout/engine.h"
#include "tandem/train/trainer.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

// Everything the cases of one folder share.
struct Folder {
  std::string dir;
  json golden;
  checkpoint::SafetensorsFile values;
  device::Arena arena;
  std::unique_ptr<comm::Group> alone = comm::single();
  model::kernel::Kernels kernels;
  model::ModelOnRank model;
  Report& report;

  Folder(const std::string& path, const std::string& by, at::Device device, Report& to)
      : dir(path), golden(read_json_object(path + "/golden.json")), values(path + "/golden.safetensors"), arena("device", 0, device),
        kernels(model::kernel::backend_named(by, device, "--kernels"), at::kFloat, false, device),
        model(model::read_config(path, model::ModelUse::kEither), {}, kernels, {arena, "weights"}), report(to) {
    model.load(path);
  }

  at::Tensor value(const std::string& name) const { return values.view(name).clone(); }
  std::string name(const std::string& what) const { return dir.substr(dir.find_last_of('/') + 1) + "/" + what; }

  void check(const std::string& what, const at::Tensor& got, const at::Tensor& want, double tolerance) {
    if (got.sizes() != want.sizes()) return report.fail(name(what), "another shape");
    const double worst = want.numel() == 0 ? 0.0 : (got.cpu().to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
    if (worst <= tolerance) return report.pass();
    report.fail(name(what), join_text("differs by ", worst, ", allowed ", tolerance));
  }
  void check(const std::string& what, double got, double want, double tolerance) {
    check(what, at::scalar_tensor(got, at::kDouble), at::scalar_tensor(want, at::kDouble), tolerance);
  }
};

std::vector<int32_t> ids_of(const at::Tensor& t) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < t.numel(); ++i) ids.push_back(static_cast<int32_t>(t.data_ptr<int64_t>()[i]));
  return ids;
}

at::Tensor tensor_of(const std::vector<float>& values) {
  return at::from_blob(const_cast<float*>(values.data()), {static_cast<int64_t>(values.size())}, at::kFloat).clone();
}

// The experts of each token, in any order.
void check_routes(Folder& f, const std::string& name, const at::Tensor& routes) {
  const auto sorted = [](const at::Tensor& t) { return std::get<0>(t.cpu().to(at::kLong).sort(1)); };
  if (at::equal(sorted(routes), sorted(f.value(name)))) f.report.pass();
  else f.report.fail(f.name(name), "other experts");
}

void check_forward(Folder& f, int index) {
  const std::string p = "seq" + std::to_string(index) + ".";
  const at::Tensor ids = f.value(p + "input_ids");
  const int64_t T = ids.numel();
  at::NoGradGuard off;
  model::PackedContext context(f.kernels, {{0, T, {}}});
  const at::Tensor routes = at::zeros({T, f.model.decoder().route_width()}, f.kernels.options(at::kShort));
  const model::TokenBatch batch{ids, at::arange(T, at::kLong), {}, {}, routes};
  const at::Tensor hidden = f.model.decoder().forward(f.model.parameters(), batch, context);
  for (int64_t l = 0, at = 0, k = f.model.config().moe.experts_per_token; l < f.model.config().num_layers; ++l) {
    if (!f.model.config().is_sparse(l)) continue;
    check_routes(f, join_text("routing.layer", l, ".seq", index, ".indices"), routes.narrow(1, at, k));
    at += k;
  }
  f.check(p + "logits", f.model.decoder().local_logits(f.model.parameters(), hidden), f.value(p + "logits"), 5e-4);
  for (const auto& [suffix, temperature] : {std::pair{"logprobs_t1.0", 1.0}, std::pair{"logprobs_t0.7", 0.7}}) {
    const auto head = f.model.decoder().logprobs(f.model.parameters(), hidden.narrow(0, 0, T - 1), ids.narrow(0, 1, T - 1), temperature);
    f.check(p + suffix, head.logprobs_R, f.value(p + suffix), 1e-4);
  }
  const auto head = f.model.decoder().logprobs(f.model.parameters(), hidden, ids, 1.0);
  f.check(p + "entropy_t1.0", head.entropy_R, f.value(p + "entropy_t1.0"), 1e-4);
}

// What one rank draws from `prompt` at temperature 0.
data::Sample draw_greedily(const rollout::EngineSetup& setup, const model::ModelParameters& parameters, const rollout::Options& options,
                           const std::vector<int32_t>& prompt, int64_t new_tokens) {
  rollout::Engine engine(options, setup);
  engine.switch_weights(parameters, data::PolicyVersion{0});
  rollout::Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = new_tokens;
  engine.submit(std::move(request));
  while (engine.must_step()) engine.step();
  return engine.completed().at(0).sample;
}

// Greedy tokens of the engine: on one rank, with the prompt in chunks, and under the layouts of two ranks. There a second replica
// answers a shorter prompt meanwhile, so that ranks with other tokens meet at the experts.
void check_greedy(Folder& f) {
  const std::vector<int32_t> prompt = ids_of(f.value("greedy.prompt_ids")), want = ids_of(f.value("greedy.new_ids"));
  const auto new_tokens = std::ssize(want), total = new_tokens + std::ssize(prompt);
  rollout::Options whole, chunked;
  chunked.prefill_tokens = 3;
  chunked.kv_block_tokens = 16;
  const auto check = [&](const std::string& how, const data::Sample& sample) {
    if (sample.ids == want) f.report.pass();
    else f.report.fail(f.name("greedy.new_ids" + how), "other tokens");
    f.check("greedy.logprobs_t1.0" + how, tensor_of(sample.logprobs), f.value("greedy.logprobs_t1.0"), 1e-4);
  };
  std::vector<std::string> layouts = {"dp1", "tp2"};
  if (f.model.config().moe.num_experts > 0) layouts.insert(layouts.end(), {"dp2,ep2", "tp2,ep2"});
  for (const std::string& text : layouts) {
    const model::Layout layout = model::parse_layout(text, "layout");
    try {
      model::check_layout(layout, f.model.config(), model::Use::kRollout, "layout");
    } catch (const UserError& e) {
      f.report.skip(f.name("greedy " + text), e.what());
      continue;
    }
    if (!f.arena.device().is_cpu() && layout.world() > device::backend_of(f.arena.device()).count()) {
      f.report.skip(f.name("greedy " + text), "there are not as many devices");
      continue;
    }
    std::map<std::string, data::Sample> drawn;  // by rank 0
    comm::run_local(layout.world(), 60, [&](comm::Group& world) {
      device::set_compute_threads(1);
      const at::DeviceType type = f.arena.device().type();
      const at::Device device = type == at::kCPU ? at::Device(type) : at::Device(type, static_cast<at::DeviceIndex>(world.rank()));
      device::backend_of(device).use(device);
      comm::Mesh mesh(world, model::mesh_sizes(layout));
      device::Arena arena("device", 0, device);
      const model::kernel::Kernels kernels(f.kernels.backend(), f.kernels.dtype(), f.kernels.choice(), device);
      model::ModelOnRank model(f.model.config(), model::place_in(layout, mesh), kernels, {arena, "weights"});
      model.load(f.dir);
      const rollout::EngineSetup setup{model.decoder(), arena, model.config().vocab_size, total};
      const bool other = layout.dp_rank(world.rank()) > 0;
      const std::vector<int32_t> mine(prompt.begin() + (other ? 2 : 0), prompt.end());
      for (const auto& [how, options] : {std::pair{"", whole}, std::pair{" (in chunks)", chunked}}) {
        data::Sample sample = draw_greedily(setup, model.parameters(), options, mine, new_tokens - other);
        if (world.rank() == 0) drawn.emplace(how, std::move(sample));
      }
    });
    for (const auto& [how, sample] : drawn) check((text == "dp1" ? "" : " " + text) + how, sample);
  }
}

// The rows of the batch: every token but the first is a response.
struct BatchRows {
  std::vector<std::vector<int32_t>> ids;
  std::vector<train::Row> rows;
  explicit BatchRows(const Folder& f) {
    const auto name = [](int i) { return "seq" + std::to_string(i) + ".input_ids"; };
    for (int i = 0; f.values.contains(name(i)); ++i) ids.push_back(ids_of(f.value(name(i))));
    for (const auto& x : ids) {
      train::Row row;
      row.prompt = std::span(x).first(1);
      row.response = std::span(x).subspan(1);
      rows.push_back(row);
    }
  }
};

void check_training(Folder& f, bool recompute) {
  const json& run = f.golden.at("adamw");
  train::Options options;
  options.lr = run.at("lr").get<double>();
  options.beta1 = run.at("betas").at(0).get<double>();
  options.beta2 = run.at("betas").at(1).get<double>();
  options.weight_decay = run.at("weight_decay").get<double>();
  options.decay_norms = true;  // torch's AdamW over every parameter
  options.clip_grad_norm = run.at("clip_grad_norm").get<double>();
  options.recompute = recompute;
  options.micro_batch_tokens = recompute ? 1 : 8192;  // the second pass also splits the batch
  model::ModelOnRank model(f.model.config(), {}, f.kernels, {f.arena, "weights"});
  model.load(f.dir);
  train::Trainer trainer(options, {model.table(), model.decoder(), model.values(), train::Ranks::of_one(*f.alone), f.arena});
  trainer.start();
  const BatchRows batch(f);
  const std::string suffix = recompute ? " (recompute)" : "";
  const json& losses = run.at("loss_before_step");
  const json& norms = run.at("grad_norm_before_clip");
  for (size_t i = 0; i < losses.size(); ++i) {
    const train::StepReport step = trainer.supervised_step(batch.rows, options.lr);
    f.check("adamw.loss" + std::to_string(i) + suffix, step.loss, losses[i].get<double>(), 1e-4);
    f.check("adamw.grad_norm" + std::to_string(i) + suffix, step.grad_norm, norms[i].get<double>(), 1e-3 * norms[i].get<double>());
    if (i > 0) continue;
    for (const model::ParameterEntry& e : model.table().entries) {
      if (!e.parameter.trained) continue;
      const std::string name = "grad." + e.parameter.name;
      const at::Tensor got = model.table().view(trainer.grads(), e);
      const double norm = f.golden.at("grad_l2_norms").at(e.parameter.name).get<double>();
      f.check(name + " norm" + suffix, got.norm().item<double>(), norm, 1e-3 * norm);
      if (!f.values.contains(name)) continue;  // the folder keeps whole gradients of a few tensors
      const at::Tensor want = f.value(name);
      f.check(name + suffix, got, want, 1e-3 * want.abs().max().item<double>());
    }
    const double all = f.golden.at("grad_global_l2_norm").get<double>();
    f.check("grad_global_l2_norm" + suffix, step.grad_norm, all, 1e-3 * all);
    f.check("mean_nll" + suffix, step.loss, f.golden.at("mean_nll").get<double>(), 1e-4);
  }
}

// The scores of every token, each sequence alone.
void check_scores(Folder& f) {
  at::NoGradGuard off;
  for (int i = 0; f.values.contains(join_text("seq", i, ".input_ids")); ++i) {
    const std::string p = join_text("seq", i, ".");
    const at::Tensor ids = f.value(p + "input_ids");
    model::PackedContext context(f.kernels, {{0, ids.numel(), {}}});
    const model::TokenBatch batch{ids, at::arange(ids.numel(), at::kLong), {}, {}, {}};
    const at::Tensor hidden = f.model.decoder().forward(f.model.parameters(), batch, context);
    f.check(p + "scores", f.model.decoder().scores(f.model.parameters(), hidden), f.value(p + "scores"), 1e-5);
  }
}

// The mean squared distance of the last tokens' scores from `targets`, and its gradient; all sequences in one pass.
void check_score_gradient(Folder& f) {
  std::vector<at::Tensor> ids, positions;
  std::vector<int64_t> lengths;
  for (int i = 0; f.values.contains(join_text("seq", i, ".input_ids")); ++i) {
    ids.push_back(f.value(join_text("seq", i, ".input_ids")));
    lengths.push_back(ids.back().numel());
    positions.push_back(at::arange(lengths.back(), at::kLong));
  }
  const at::Tensor last_R = at::tensor(lengths, at::kLong).cumsum(0) - 1;
  const model::ParameterTable& table = f.model.table();
  const at::Tensor grads = at::zeros({table.num_elements}, f.kernels.options(at::kFloat));
  const model::ModelParameters parameters = model::make_parameters(table, f.model.values(), grads);
  model::PackedContext context(f.kernels, model::kernel::stems(lengths));
  const at::Tensor hidden = f.model.decoder().forward(parameters, {at::cat(ids), at::cat(positions), last_R, {}, {}}, context);
  const at::Tensor loss = (f.model.decoder().scores(parameters, hidden).cpu() - f.value("targets")).pow(2).mean();
  loss.backward();
  f.check("mse", loss.item<double>(), f.golden.at("mse").get<double>(), 1e-5);
  for (const model::ParameterEntry& e : table.entries) {
    if (!e.parameter.trained) continue;
    const at::Tensor got = table.view(grads, e);
    const double norm = f.golden.at("grad_l2_norms").at(e.parameter.name).get<double>();
    f.check("grad." + e.parameter.name + " norm", got.norm().item<double>(), norm, 1e-3 * norm);
    if (!f.values.contains("grad." + e.parameter.name)) continue;
    const at::Tensor want = f.value("grad." + e.parameter.name);
    f.check("grad." + e.parameter.name, got, want, 1e-3 * want.abs().max().item<double>());
  }
}

}  // namespace

void run_model(const std::string& dir, const OracleOptions& options, Report& report) {
  const at::Device device = device::device_named(options.device, "--device");
  device::backend_of(device).use(device);
  Folder folder(dir, options.kernels, device, report);
  if (folder.model.config().num_labels > 0) {
    check_scores(folder);
    return check_score_gradient(folder);
  }
  for (int i = 0; folder.values.contains("seq" + std::to_string(i) + ".input_ids"); ++i) check_forward(folder, i);
  check_greedy(folder);
  check_training(folder, false);
  check_training(folder, true);
}

}  // namespace tandem::cli
