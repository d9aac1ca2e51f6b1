// SPDX-License-Identifier: Apache-2.0
// T tokens of a micro-batch, R its response tokens, H hidden size
#include "tandem/train/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/device/allocation_meter.h"
#include "tandem/train/passes.h"

namespace tandem::train {
namespace {

// Cuts R values into rows.
void split_rows(const MicroBatch& batch, const at::Tensor& values_R, std::vector<std::vector<float>>& out) {
  const float* v = values_R.data_ptr<float>();
  const std::vector<int64_t>& offsets = batch.response_offsets;
  for (size_t i = 0; i < batch.rows.size(); ++i) out[batch.rows[i]].assign(v + offsets[i], v + offsets[i + 1]);
}

// One value per response token, from rows.
template <class Fill>
at::Tensor per_token(const MicroBatch& batch, std::span<const Row> rows, const Fill& fill) {
  at::Tensor out = at::empty({batch.response_offsets.back()}, at::kFloat);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const int64_t at = batch.response_offsets[i];
    fill(rows[batch.rows[i]], at, out.data_ptr<float>() + at);
  }
  return out;
}

}  // namespace

namespace {

model::Recompute recompute_of(const Options& o) {
  if (o.recompute == "full") return model::Recompute::kFull;
  return o.recompute == "selective" ? model::Recompute::kSelective : model::Recompute::kNone;
}

}  // namespace

double learning_rate(const Options& o, int64_t step, int64_t total_steps) {
  if (step <= o.warmup_steps) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  if (o.lr_schedule == "constant") return o.lr;
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps - o.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - o.warmup_steps) / span);
  const double left = o.lr_schedule == "linear" ? 1.0 - done : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return o.lr * (o.min_lr_ratio + (1.0 - o.min_lr_ratio) * left);
}

void check_options(const Options& o, const model::ModelConfig& config, const model::LoraOptions& lora, const std::string& section) {
  const auto refuse = [&](const char* option, const std::string& why) { throw UserError(section + "." + option, why, "0"); };
  const std::string family = "a " + config.family;
  if (o.router_balance_coef > 0 && config.moe.num_experts == 0) refuse("router_balance_coef", family + " has no experts");
  if (o.router_z_coef > 0 && config.moe.num_experts == 0) refuse("router_z_coef", family + " has no experts");
  if (o.router_bias_rate == 0) return;
  if (!config.moe.correction_bias) refuse("router_bias_rate", family + " has no correction bias");
  if (lora.rank > 0) refuse("router_bias_rate", "a correction bias cannot move where adapters alone are trained");
}

namespace {

// One value for each response token, as `values` has them of a micro-batch.
template <class Values>
std::vector<std::vector<float>> values_of_rows(const model::Decoder& decoder, const model::ModelParameters& parameters,
                                               std::span<const Row> rows, int64_t budget_tokens, const Values& values) {
  std::vector<std::vector<float>> out(rows.size());
  std::vector<MicroBatch> batches = pack(rows, budget_tokens);
  share_micro_batches(decoder, batches);
  run_scoring(decoder, parameters, batches,
              [&](const MicroBatch& batch, const at::Tensor& hidden_RH) { split_rows(batch, values(batch, hidden_RH), out); });
  return out;
}

}  // namespace

std::vector<std::vector<float>> score(const model::Decoder& decoder, const model::ModelParameters& parameters, std::span<const Row> rows,
                                      double temperature, int64_t budget_tokens) {
  return values_of_rows(decoder, parameters, rows, budget_tokens, [&](const MicroBatch& batch, const at::Tensor& hidden_RH) {
    return head_of(decoder, parameters, batch, hidden_RH, temperature).logprobs_R;
  });
}

std::vector<std::vector<float>> token_values(const model::Decoder& decoder, const model::ModelParameters& parameters,
                                             std::span<const Row> rows, int64_t budget_tokens) {
  return values_of_rows(decoder, parameters, rows, budget_tokens, [&](const MicroBatch& batch, const at::Tensor& hidden_RH) {
    return whole_responses(batch, decoder.scores(parameters, hidden_RH).select(1, 0).contiguous());
  });
}

struct Trainer::Totals {
  algo::LossSums sums;
  double loss = 0, entropy = 0, kl_ref = 0, kl_rollout_train = 0;
  double fresh_tokens = 0;
  double global_tokens = 0, global_sequences = 0;
};

Trainer::Trainer(const Options& options, const TrainerSetup& setup)
    : options_(options),
      setup_(setup),
      lora_(setup.lora.rank > 0 ? std::make_unique<model::Lora>(setup.table, setup.lora, setup.values, setup.arena) : nullptr),
      grads_({setup.arena, "gradients", nullptr, device::Keep::kNothing}, (lora_ ? lora_->table() : setup.table).num_elements, at::kFloat),
      parameters_(lora_ ? lora_->adapted(grads()) : model::make_parameters(setup.table, setup.values, grads())),
      optimizer_({lora_ ? lora_->table() : setup.table, lora_ ? lora_->values() : setup.values, grads(), setup.ranks, setup.arena,
                  setup.host,
                  options.swap_optimizer, lora_ ? nullptr : setup.home, setup.recorder, options.gradient_bucket_mib << 20}) {
  check_options(options, setup.table.config, setup.lora, "train");
}

void Trainer::start() {
  if (lora_) lora_->start(setup_.seed);
  optimizer_.adopt_values();
}

void Trainer::release_gradients() {
  grads_.leave();
  optimizer_.release_sums();
}

void Trainer::back_gradients() {
  grads_.come_back();
  optimizer_.back_sums();
}

void Trainer::share_values() {
  optimizer_.share_values();
  if (lora_) lora_->merge();
}

// The load of the step's tokens under the weights before the update: as replayed, else from a forward pass.
// `replayed` is the same on all ranks: an empty micro-batch does not know.
RouterLoad Trainer::load_before(std::span<MicroBatch> batches, bool replayed) const {
  at::NoGradGuard no_grad;
  const model::RankPlace& place = setup_.decoder.place();
  const bool counts_replayed = place.layout.tp_rank(place.rank) == 0 && place.layout.pp_rank(place.rank) == 0;
  RouterLoad load(setup_.table.config);
  for (MicroBatch& batch : batches) {
    const model::TokenBatch& tokens = batch.tokens;
    if (replayed) {
      if (counts_replayed && tokens.replayed_routes_TX.defined()) load.count(tokens.replayed_routes_TX, tokens.rows_R);
      continue;
    }
    model::PackedContext context(batch.trees, setup_.decoder.gemm().parity(), batch.parallel);
    setup_.decoder.forward_stages(parameters_, tokens, context);
    load.count(tokens.recorded_routes_TX, tokens.rows_R);
  }
  load.sum_over(*setup_.ranks.world);
  return load;
}

// The routers' part of a step.
struct Trainer::Routing {
  model::RouterLosses losses;
  RouterLoad load;
  bool has_losses() const { return losses.z > 0 || losses.balance > 0; }
};

Trainer::Routing Trainer::prepare_routers(std::span<MicroBatch> batches, double global_tokens, bool replayed) const {
  Routing routing{{options_.router_z_coef / global_tokens, options_.router_balance_coef / global_tokens, {}, {}},
                  RouterLoad(setup_.table.config)};
  const int64_t width = setup_.decoder.route_width();
  if (width == 0) return routing;
  for (MicroBatch& batch : batches) batch.tokens.recorded_routes_TX = at::full({batch.tokens.ids_T.numel(), width}, -1, at::kShort);
  if (routing.losses.balance > 0) routing.losses.load_LE = load_before(batches, replayed).relative_LE();
  return routing;
}

StepReport Trainer::step(std::span<const Row> rows, const Loss& loss, double temperature, double lr) {
  const model::RankPlace& place = setup_.decoder.place();
  comm::Group& world = *setup_.ranks.world;
  const bool speaks = place.layout.speaks(place.rank);
  std::vector<MicroBatch> batches = pack(rows, options_.micro_batch_tokens);
  Totals totals;
  at::Tensor counts = at::zeros({5}, at::kDouble);
  double* count = counts.data_ptr<double>();
  if (speaks) {
    count[1] = static_cast<double>(rows.size());
    for (const Row& row : rows) count[0] += static_cast<double>(row.response.size()), count[2] += static_cast<double>(row.num_tokens());
    for (const MicroBatch& batch : batches) count[3] += static_cast<double>(batch.tokens.ids_T.numel());
    for (const Row& row : rows) count[4] += row.routes.empty() ? 0 : 1;
  }
  world.all_reduce(counts, comm::ReduceOp::kSum);
  totals.global_tokens = count[0], totals.global_sequences = count[1];
  TANDEM_CHECK(totals.global_tokens > 0, "a step without a token to train on");
  share_micro_batches(setup_.decoder, batches);
  Routing routing = prepare_routers(batches, totals.global_tokens, count[4] > 0);

  optimizer_.begin_step();  // before: a step that was given up may still be adding up
  grads().zero_();
  StepReport report;
  report.logprobs.resize(rows.size());
  for (MicroBatch& batch : batches) batch.tokens.router_losses = routing.has_losses() ? &routing.losses : nullptr;
  const TrainingPass pass{setup_.decoder, parameters_, temperature, recompute_of(options_),
                          [this](int64_t layer) { optimizer_.layer_ready(layer); }};
  {
    const double begin_s = now_s();
    device::AllocationMeter meter(setup_.arena, kActivations);
    run_training(pass, batches, [&](const MicroBatch& batch, const model::kernel::HeadOutput& head) {
      split_rows(batch, head.logprobs_R.detach(), report.logprobs);
      totals.entropy += head.entropy_R.sum().item<double>();
      const at::Tensor share = loss(batch, head.logprobs_R, totals);
      totals.loss += share.item<double>();
      return share;
    });
    report.activation_peak_bytes = meter.peak_bytes();
    if (setup_.recorder) setup_.recorder->span("forward and backward passes", "passes", begin_s, now_s());
  }
  for (const MicroBatch& batch : batches)
    if (batch.tokens.recorded_routes_TX.defined()) routing.load.count(batch.tokens.recorded_routes_TX, batch.tokens.rows_R);

  at::Tensor sums = at::zeros({8}, at::kDouble), most = at::zeros({1}, at::kDouble);
  double* s = sums.data_ptr<double>();
  if (speaks) {
    s[0] = totals.loss, s[1] = totals.entropy, s[2] = totals.kl_ref, s[3] = totals.sums.clipped, s[4] = totals.kl_rollout_train;
    s[5] = totals.fresh_tokens;
    most.data_ptr<double>()[0] = totals.sums.ratio_max;
  }
  s[6] = routing.losses.z_sum, s[7] = routing.losses.balance_sum;  // each rank has those of its own tokens and layers
  world.all_reduce(sums, comm::ReduceOp::kSum);
  world.all_reduce(most, comm::ReduceOp::kMax);
  if (!std::isfinite(s[0])) {
    optimizer_.give_up_step();
    throw UserError("train", join_text("the loss of update ", optimizer_.num_steps() + 1, " is ", s[0]),
                    "finite rewards and a lower learning rate; the last checkpoint holds the state before");
  }
  report.grad_norm = optimizer_.step(options_, lr);
  if (lora_) lora_->merge();
  if (setup_.decoder.route_width() > 0) {
    routing.load.sum_over(world);
    if (options_.router_bias_rate > 0) update_bias(setup_.table.config, parameters_, routing.load, options_.router_bias_rate);
    const double router_rows = totals.global_tokens * static_cast<double>(routing.load.relative_LE().size(0));
    report.router_load_max = routing.load.most();
    if (routing.has_losses()) report.router_z = s[6] / router_rows;
    if (routing.losses.balance > 0) report.router_balance = s[7] / router_rows;
  }
  report.lr = lr;
  report.loss = s[0];
  report.entropy = s[1] / totals.global_tokens;
  report.kl_ref = s[2] / totals.global_tokens;
  report.clip_fraction = s[3] / totals.global_tokens;
  if (s[5] > 0) report.kl_rollout_train = s[4] / s[5];
  report.ratio_max = most.data_ptr<double>()[0];
  report.trained_tokens = totals.global_tokens;
  report.sequence_tokens = count[2];
  report.computed_tokens = count[3];
  return report;
}

StepReport Trainer::policy_step(std::span<const Row> rows, const algo::Algorithm& algorithm, double temperature, double lr) {
  const Loss loss = [&](const MicroBatch& batch, const at::Tensor& logprobs, Totals& totals) {
    const at::Tensor current = logprobs.detach();
    const float* now = current.data_ptr<float>();
    const int64_t R = batch.response_offsets.back();
    at::Tensor offsets = at::empty({static_cast<int64_t>(batch.rows.size())}, at::kLong);
    std::copy(batch.response_offsets.begin(), batch.response_offsets.end() - 1, offsets.data_ptr<int64_t>());
    algo::PolicyLossInput in;
    in.logprobs_T = logprobs;
    in.old_T = per_token(batch, rows, [&](const Row& row, int64_t at, float* out) {
      const float* from = row.old.empty() ? now + at : row.old.data();
      std::copy(from, from + row.response.size(), out);
    });
    const auto behavior = [](const Row& row, int64_t, float* out) { std::copy(row.behavior.begin(), row.behavior.end(), out); };
    in.behavior_T = per_token(batch, rows, behavior);
    in.correction_T = at::ones({R}, at::kFloat);
    in.advantages_T = per_token(batch, rows, [](const Row& row, int64_t, float* out) {
      std::fill(out, out + row.response.size(), static_cast<float>(row.advantage));
    });
    in.trainable_T = at::ones({R}, at::kBool);
    in.offsets_S = offsets;
    in.global_tokens = totals.global_tokens;
    in.global_sequences = totals.global_sequences;
    const algo::PolicyLoss policy = algo::policy_loss(in, algorithm);
    totals.sums.add(policy.sums);
    // Both sides of a fresh row are the same quantity and must agree.
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const Row& row = rows[batch.rows[i]];
      if (!row.fresh) continue;
      totals.fresh_tokens += static_cast<double>(row.response.size());
      for (size_t t = 0; t < row.response.size(); ++t) {
        const double d = static_cast<double>(row.behavior[t]) - now[batch.response_offsets[i] + static_cast<int64_t>(t)];
        totals.kl_rollout_train += std::expm1(-d) + d;
      }
    }
    if (!algorithm.needs_reference()) return policy.loss;
    const at::Tensor reference = per_token(batch, rows, [](const Row& row, int64_t, float* out) {
      std::copy(row.reference.begin(), row.reference.end(), out);
    });
    const algo::KlPenalty kl =
        algo::kl_penalty(logprobs, reference, {in.trainable_T, in.offsets_S, in.global_tokens, in.global_sequences}, algorithm);
    totals.kl_ref += kl.sum;
    return policy.loss + kl.loss;
  };
  return step(rows, loss, temperature, lr);
}

StepReport Trainer::supervised_step(std::span<const Row> rows, double lr) {
  const auto loss = [](const MicroBatch&, const at::Tensor& logprobs, Totals& totals) { return -logprobs.sum() / totals.global_tokens; };
  return step(rows, loss, 1.0, lr);
}

}  // namespace tandem::train
