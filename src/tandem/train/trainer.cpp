// SPDX-License-Identifier: Apache-2.0
// T tokens of a micro-batch, R its response tokens, H hidden size
#include "tandem/train/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numbers>
#include <utility>

#include "tandem/algo/algorithm.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/scalar.h"
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

ValueReport value_report(const StepSums& sums, double tokens) {
  const auto variance = [&](double sum, double squares) { return std::max(0.0, squares / tokens - sum / tokens * (sum / tokens)); };
  const double of_returns = variance(sums.returns, sums.squared_returns), of_errors = variance(sums.errors, sums.squared_errors);
  return {sums.values / tokens, of_returns > 0 ? 1 - of_errors / of_returns : 0};
}

// Sums as means over trainable tokens.
void tell(const StepTotals& totals, StepReport& report) {
  const StepSums& sums = totals.sums;
  const double tokens = std::max(totals.counts.tokens, 1.0);
  report.loss = sums.loss;
  report.entropy = sums.entropy / tokens;
  report.kl_ref = sums.kl_ref / tokens;
  report.clip_fraction = sums.clipped / tokens;
  report.gap_tokens = sums.gap.tokens();
  report.gap = sums.gap.report();
  if (report.gap) report.kl_rollout_train = sums.kl_rollout_train / static_cast<double>(report.gap_tokens);
  report.kl_old = sums.kl_old / tokens;
  report.ratio_max = totals.ratio_max;
  report.correction = {sums.weight / tokens,   totals.weight_max,         sums.outside / tokens,
                       sums.rejected / tokens, sums.behavior_kl / tokens, sums.behavior_chi2 / tokens};
  report.value = value_report(sums, tokens);
  report.without_signal = totals.counts.tokens > 0 && totals.counts.signal_rows == 0;
  report.trained_tokens = totals.counts.tokens;
  report.sequence_tokens = report.pass_tokens = totals.counts.sequence_tokens;
  report.computed_tokens = totals.counts.computed_tokens;
}

// Of all micro-batches, in their order; nothing but on the last stage.
Said joined(std::span<const Said> some) {
  std::vector<at::Tensor> of_tokens, entropies;
  for (const Said& said : some)
    if (said.of_tokens_R.defined()) of_tokens.push_back(said.of_tokens_R.detach()), entropies.push_back(said.entropy_R.detach());
  return of_tokens.empty() ? Said{} : Said{at::cat(of_tokens), at::cat(entropies)};
}

// `what` of the next update is `number`, on all ranks. Errors: UserError under Options::nonfinite `end`.
void leave_out(StepReport& report, const std::string& what, double number, const Options& options, const TrainerSetup& setup) {
  const UserError fault(setup.section, join_text("the ", what, " is ", number),
                        "finite rewards and a lower learning rate, or " + setup.section + ".nonfinite: skip");
  if (options.nonfinite == "end") throw fault;
  if (setup.ranks.world->rank() == 0) log::warning(fault.what(), "; the update is left out");
  report.skipped = true;
  report.nonfinite = 1;
}

}  // namespace

model::Recompute recompute_of(const Options& o) {
  if (o.recompute == "full") return model::Recompute::kFull;
  return o.recompute == "selective" ? model::Recompute::kSelective : model::Recompute::kNone;
}

StepReport joined(std::span<const StepReport> updates, int64_t mini_batches) {
  if (updates.size() == 1) return updates.front();
  StepReport out;
  // A field's mean over all trained tokens; updates that were left out do not count.
  const auto mean_of = [](std::span<const StepReport> some, const auto& field) {
    double sum = 0, tokens = 0;
    for (const StepReport& u : some)
      if (!u.nonfinite) sum += field(u) * u.trained_tokens, tokens += u.trained_tokens;
    return sum / std::max(tokens, 1.0);
  };
  const auto mean = [&](auto field) { return mean_of(updates, field); };
  const auto most = [&](auto field) {
    double largest = 0;
    for (const StepReport& u : updates) largest = std::max(largest, field(u));
    return largest;
  };
  using Report = StepReport;
  for (double Report::*field : {&Report::loss, &Report::grad_norm, &Report::entropy, &Report::kl_ref, &Report::clip_fraction})
    out.*field = mean([&](const Report& u) { return u.*field; });
  using Correction = CorrectionReport;
  for (double Correction::*field : {&Correction::weight_mean, &Correction::clipped_fraction, &Correction::rejected_fraction,
                                    &Correction::kl, &Correction::chi2})
    out.correction.*field = mean([&](const Report& u) { return u.correction.*field; });
  for (double ValueReport::*field : {&ValueReport::values_mean, &ValueReport::explained_variance})
    out.value.*field = mean([&](const Report& u) { return u.value.*field; });
  out.ratio_max = most([](const Report& u) { return u.ratio_max; });
  out.correction.weight_max = most([](const Report& u) { return u.correction.weight_max; });
  out.lr = updates.back().lr;
  // Only the first one's samples are of the weights it starts from.
  out.kl_rollout_train = updates.front().kl_rollout_train;
  out.gap_tokens = updates.front().gap_tokens, out.gap = updates.front().gap;
  const auto of_epoch = std::min(updates.size(), static_cast<size_t>(mini_batches));
  out.kl_old = mean_of(updates.last(of_epoch), [](const StepReport& u) { return u.kl_old; });
  out.skipped = std::ranges::all_of(updates, &StepReport::skipped);
  out.without_signal = std::ranges::all_of(updates, &StepReport::without_signal);
  out.activation_peak_bytes = std::ranges::max(updates, {}, &StepReport::activation_peak_bytes).activation_peak_bytes;
  for (const StepReport& u : updates.first(of_epoch)) {
    out.trained_tokens += u.trained_tokens;
    out.sequence_tokens += u.sequence_tokens;
  }
  for (const StepReport& u : updates) {
    out.computed_tokens += u.computed_tokens;
    out.pass_tokens += u.pass_tokens;
    out.nonfinite += u.nonfinite;
    if (!u.skipped) out.router_load_max = u.router_load_max, out.router_balance = u.router_balance, out.router_z = u.router_z;
  }
  return out;
}

int64_t lr_steps_of(const Options& o, int64_t began, int64_t run_steps) {
  if (o.lr_steps > 0) return o.lr_steps;
  return began > 0 ? began : run_steps;
}

double learning_rate(const Options& o, int64_t step, int64_t lr_steps) {
  if (step <= o.warmup_steps) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  if (o.lr_schedule == "constant") return o.lr;
  const double span = static_cast<double>(std::max<int64_t>(1, lr_steps - o.warmup_steps));
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
    return values_of(decoder, parameters, batch, hidden_RH);
  });
}

Trainer::Trainer(const Options& options, const TrainerSetup& setup)
    : options_(options),
      setup_(setup),
      lora_(setup.lora.rank > 0 ? std::make_unique<model::Lora>(setup.table, setup.lora, setup.values, setup.arena) : nullptr),
      grads_({setup.arena, setup.owner_prefix + "gradients", nullptr, device::Keep::kNothing},
             (lora_ ? lora_->table() : setup.table).num_elements, at::kFloat),
      parameters_(lora_ ? lora_->adapted(grads())
                         : model::make_parameters(setup.table, setup.values, grads())),
      optimizer_({.state = {.table = lora_ ? lora_->table() : setup.table,
                            .kernels = setup.decoder.kernels().backend().update,
                            .values = lora_ ? lora_->values() : setup.values,
                            .arena = setup.arena,
                            .host = setup.host,
                            .swap = options.swap_optimizer,
                            .home = lora_ ? nullptr : setup.home,
                            .owner_prefix = setup.owner_prefix},
                  .grads = grads(),
                  .ranks = setup.ranks,
                  .recorder = setup.recorder,
                  .bucket_bytes = options.gradient_bucket_mib << 20}),
      waiting_(setup.arena, *setup.ranks.world, setup.decoder.place().layout) {
  check_options(options, setup.table.config, setup.lora, setup.section);
}

Trainer::~Trainer() = default;

void Trainer::start() {
  if (lora_) lora_->start(setup_.seed);
  optimizer_.state().adopt_values();
}

void Trainer::restore(int64_t num_steps, const ReadPiece& read) {
  begun_.reset();
  optimizer_.restore(num_steps, read);
}

void Trainer::release_gradients() {
  grads_.leave();
  for (device::Swappable* sums : optimizer_.sums())
    if (sums) sums->leave();
}

void Trainer::back_gradients() {
  grads_.come_back();
  for (device::Swappable* sums : optimizer_.sums())
    if (sums) sums->come_back();
}

void Trainer::share_values() {
  optimizer_.share_values();
  if (lora_) lora_->refresh();
}

namespace {

int64_t num_tokens(std::span<const MicroBatch> batches) {
  int64_t tokens = 0;
  for (const MicroBatch& batch : batches) tokens += batch.tokens.ids_T.numel();
  return tokens;
}

}  // namespace

// One step's work, from rows to the update; or a part of one, whose gradients wait for the others.
struct Trainer::Step {
  Step(Trainer& trainer, std::span<const Row> rows, const Lesson& lesson);
  void run_passes(const Lesson& lesson, double temperature, bool is_whole);
  void update(double lr, double max_kl = std::numeric_limits<double>::infinity());
  void join(const Step& earlier);

  StepTotals totals;
  StepReport report;

 private:
  using SaidOf = std::function<Said(const MicroBatch&, const at::Tensor& hidden_RH)>;
  at::Tensor share_of(const Objective& objective, const MicroBatch& batch, const Said& said);
  void run_late(const TrainingPass& pass, const LateObjective& late, const SaidOf& said_of, const device::AllocationMeter& meter);
  RouterLoad load_before(bool replayed);
  void prepare_routers();
  void finish_routers();

  Trainer& trainer;
  const Options& options;
  const TrainerSetup& setup;
  std::vector<MicroBatch> batches;
  size_t num_forward_only = 0;  // the first batches, whose rows have no gradient
  model::RouterLosses router_losses;
  RouterLoad load;
  bool has_router_losses() const { return router_losses.z > 0 || router_losses.balance > 0; }
};

Trainer::Step::Step(Trainer& t, std::span<const Row> rows, const Lesson& lesson)
    : trainer(t), options(t.options_), setup(t.setup_), load(setup.table.config) {
  // A group of rows without a signal has no gradient: it goes forward alone, for what the report tells of it. Where ranks share experts
  // they run in step, and it stays among the others: each would wait for the longest of either part.
  std::vector<size_t> forward_only, others;
  const model::RankPlace& place = setup.decoder.place();
  const bool by_advantages = lesson.by_advantages && options.router_z_coef == 0 && options.router_balance_coef == 0;
  const bool apart = by_advantages && !setup.decoder.ep();
  for (size_t begin = 0, end; begin < rows.size(); begin = end) {
    bool backward = !apart;
    for (end = begin; end < rows.size() && (end == begin || share_prompt(rows[end - 1], rows[end])); ++end)
      backward = backward || has_signal(rows[end]);
    for (size_t i = begin; i < end; ++i) (backward ? others : forward_only).push_back(i);
  }
  batches = pack(rows, forward_only, options.micro_batch_tokens);
  std::vector<MicroBatch> with_backward = pack(rows, others, options.micro_batch_tokens);
  totals.counts = counts_of_all(*setup.ranks.world, place.layout.speaks(place.rank), rows, num_tokens(batches) + num_tokens(with_backward));
  TANDEM_CHECK(totals.counts.response_tokens > 0, "a step without a response");
  share_micro_batches(setup.decoder, batches);
  share_micro_batches(setup.decoder, with_backward);
  num_forward_only = batches.size();
  std::ranges::move(with_backward, std::back_inserter(batches));
  if (by_advantages && totals.counts.signal_rows == 0) num_forward_only = batches.size();
  prepare_routers();
  report.logprobs.resize(rows.size());
}

// The load of the step's tokens under the weights before the update: as replayed, else from a forward pass.
// `replayed` is the same on all ranks: an empty micro-batch does not know.
RouterLoad Trainer::Step::load_before(bool replayed) {
  at::NoGradGuard no_grad;
  const model::RankPlace& place = setup.decoder.place();
  const bool counts_replayed = place.layout.tp_rank(place.rank) == 0 && place.layout.pp_rank(place.rank) == 0;
  RouterLoad before(setup.table.config);
  for (MicroBatch& batch : batches) {
    const model::TokenBatch& tokens = batch.tokens;
    if (replayed) {
      if (counts_replayed && tokens.replayed_routes_TX.defined()) before.count(tokens.replayed_routes_TX, tokens.rows_R);
      continue;
    }
    model::PackedContext context(setup.decoder.kernels(), batch.trees, batch.parallel);
    setup.decoder.forward_stages(trainer.parameters_, tokens, context);
    before.count(tokens.recorded_routes_TX.cpu(), tokens.rows_R);
  }
  before.sum_over(*setup.ranks.world);
  return before;
}

// An empty micro-batch does not know whether routes are replayed: the counts of all ranks say so.
void Trainer::Step::prepare_routers() {
  router_losses.z = options.router_z_coef / totals.counts.response_tokens;
  router_losses.balance = options.router_balance_coef / totals.counts.response_tokens;
  const int64_t width = setup.decoder.route_width();
  if (width == 0) return;
  for (MicroBatch& batch : batches)
    batch.tokens.recorded_routes_TX = at::full({batch.tokens.ids_T.numel(), width}, -1, setup.decoder.kernels().options(at::kShort));
  if (router_losses.balance > 0) router_losses.load_LE = load_before(totals.counts.replayed_rows > 0).relative_LE();
}

// The layers of a whole step are final as its backward pass leaves them, those of a part at the update. Afterwards totals are of all ranks.
void Trainer::Step::run_passes(const Lesson& lesson, double temperature, bool is_whole) {
  if (!trainer.begun_) {
    trainer.optimizer_.begin_step();  // before: a step that was given up may still be adding up
    trainer.grads().zero_();
  }
  for (MicroBatch& batch : batches) batch.tokens.router_losses = has_router_losses() ? &router_losses : nullptr;
  const model::ModelParameters& parameters = trainer.parameters_;
  const TrainingPass pass{setup.decoder, parameters, recompute_of(options), [&](int64_t layer) {
                            if (is_whole) trainer.optimizer_.layer_ready(layer);
                          }};
  const auto said_of = [&](const MicroBatch& batch, const at::Tensor& hidden_RH) {
    if (setup.table.config.num_labels > 0) return Said{values_of(setup.decoder, parameters, batch, hidden_RH), {}};
    const model::op::HeadOutput head = head_of(setup.decoder, parameters, batch, hidden_RH, temperature);
    return Said{head.logprobs_R, head.entropy_R};
  };
  {
    const double begin_s = now_s();
    device::AllocationMeter meter(setup.arena, kActivations);
    const LossOf loss_of = [&](const MicroBatch& batch, const at::Tensor& hidden_RH) {
      return share_of(lesson.objective, batch, said_of(batch, hidden_RH));
    };
    if (lesson.late) run_late(pass, lesson.late, said_of, meter);
    else run_scoring(setup.decoder, parameters, std::span(batches).first(num_forward_only), loss_of);  // for what the report tells
    const std::span<MicroBatch> others = std::span(batches).subspan(num_forward_only);
    if (!lesson.late && !others.empty()) run_training(pass, others, loss_of);
    report.activation_peak_bytes = meter.peak_bytes();
    const char* what = others.empty() ? "forward passes" : "forward and backward passes";
    if (setup.recorder) setup.recorder->span(what, "passes", begin_s, now_s());
  }
  for (const MicroBatch& batch : batches)
    if (batch.tokens.recorded_routes_TX.defined()) load.count(batch.tokens.recorded_routes_TX.cpu(), batch.tokens.rows_R);
  totals.sums.router_z = router_losses.z_sum, totals.sums.router_balance = router_losses.balance_sum;
  const model::RankPlace& place = setup.decoder.place();
  sum_up(*setup.ranks.world, place.layout.speaks(place.rank), totals);
  tell(totals, report);
  batches.clear();
}

// A micro-batch's part of the loss, counted.
at::Tensor Trainer::Step::share_of(const Objective& objective, const MicroBatch& batch, const Said& said) {
  if (said.entropy_R.defined()) {
    split_rows(batch, said.of_tokens_R.detach(), report.logprobs);
    totals.sums.entropy += said.entropy_R.detach().masked_fill(batch.trainable_R.logical_not(), 0).sum().item<double>();
  }
  const at::Tensor share = objective(batch, said, totals);
  totals.sums.loss += share.item<double>();
  return share;
}

// By a loss that is known once all micro-batches have gone forward. The first ones wait for it with what their backward passes need, as
// many as there is memory for. The others go forward a second time. How many wait changes no bit: the backward passes have one order.
void Trainer::Step::run_late(const TrainingPass& pass, const LateObjective& late, const SaidOf& said_of,
                             const device::AllocationMeter& meter) {
  const auto num_waiting = static_cast<size_t>(trainer.waiting_.num(batches));
  const std::span<MicroBatch> waiting = std::span(batches).first(num_waiting), others = std::span(batches).subspan(num_waiting);
  std::vector<Said> said(batches.size());
  const auto said_of_batch = [&](const MicroBatch& batch) -> Said& { return said[static_cast<size_t>(&batch - batches.data())]; };
  const UseHidden keep = [&](const MicroBatch& batch, const at::Tensor& hidden_RH) { said_of_batch(batch) = said_of(batch, hidden_RH); };
  Objective objective;
  const int64_t before_bytes = meter.bytes();
  const auto decide = [&] {
    trainer.waiting_.note(waiting, meter.bytes() - before_bytes);
    const double begin_s = now_s();
    run_scoring(setup.decoder, trainer.parameters_, others, keep);
    objective = late(joined(said));
    if (setup.recorder) setup.recorder->add("time/loss_s", now_s() - begin_s);
  };
  const auto loss_of_waiting = [&](const MicroBatch& batch) {
    return share_of(objective, batch, std::exchange(said_of_batch(batch), {}));
  };
  TrainingPass first = pass;
  if (!others.empty()) first.layer_done = {};
  run_training(first, waiting, LateLoss{keep, decide, loss_of_waiting});
  if (others.empty()) return;
  run_training(pass, others, [&](const MicroBatch& batch, const at::Tensor& hidden_RH) {
    return share_of(objective, batch, said_of(batch, hidden_RH));
  });
}

// What an earlier part of the same step has added up.
void Trainer::Step::join(const Step& earlier) {
  totals.add(earlier.totals);
  load.add(earlier.load);
  report.activation_peak_bytes = std::max(report.activation_peak_bytes, earlier.report.activation_peak_bytes);
}

// After the update: the correction bias follows the load, and the report tells it.
void Trainer::Step::finish_routers() {
  if (setup.decoder.route_width() == 0) return;
  load.sum_over(*setup.ranks.world);
  if (options.router_bias_rate > 0) update_bias(setup.table.config, trainer.parameters_, load, options.router_bias_rate);
  const double router_rows = totals.counts.response_tokens * static_cast<double>(load.relative_LE().size(0));
  report.router_load_max = load.most();
  if (has_router_losses()) report.router_z = totals.sums.router_z / router_rows;
  if (router_losses.balance > 0) report.router_balance = totals.sums.router_balance / router_rows;
}

// By the gradients that are there.
void Trainer::Step::update(double lr, double max_kl) {
  if (trainer.before_update_) trainer.before_update_();
  Optimizer& optimizer = trainer.optimizer_;
  report.lr = lr;
  tell(totals, report);
  const std::string number = join_text(" update ", optimizer.num_steps() + 1);
  if (const double total = totals.sums.loss; !std::isfinite(total)) {
    optimizer.give_up_step();
    leave_out(report, "loss of" + number, total, options, setup);
  } else if (totals.counts.tokens > 0 && !(report.kl_old > max_kl)) {
    report.grad_norm = optimizer.step(options, lr);
    if (!std::isfinite(report.grad_norm)) {
      leave_out(report, "gradient norm of" + number, report.grad_norm, options, setup);
    } else {
      if (trainer.lora_) trainer.lora_->refresh();
      finish_routers();
    }
  } else {
    optimizer.give_up_step();
    report.skipped = true;
  }
}

StepReport Trainer::step(std::span<const Row> rows, const Lesson& lesson, double temperature, double lr) {
  TANDEM_CHECK(!begun_, "a step among gradients that wait for an update");
  Step step(*this, rows, lesson);
  step.run_passes(lesson, temperature, true);
  step.update(lr, lesson.max_kl);
  return std::move(step.report);
}

namespace {

algo::WeightSum weights_of(const TrainerSetup& setup, std::span<const Row> rows, const algo::Algorithm& algorithm) {
  const model::RankPlace& place = setup.decoder.place();
  if (!algorithm.correction.normalize) return {};
  return weights_of_all(*setup.ranks.world, place.layout.speaks(place.rank), rows, algorithm.correction);
}

// From the rank of a replica that asked to those that have the same log-probabilities.
void share_gradient(const model::RankPlace& place, LossGradient& given) {
  const bool asked = place.layout.speaks(place.rank);
  const int64_t R = given.logprobs_R.numel();
  at::Tensor all = at::zeros({2 + 2 * R}, at::kDouble);  // loss, whether there are entropies, both columns
  if (asked) {
    const bool has_entropy = given.entropy_R.defined();
    all.data_ptr<double>()[0] = given.loss, all.data_ptr<double>()[1] = has_entropy ? 1 : 0;
    all.narrow(0, 2, R).copy_(given.logprobs_R);
    if (has_entropy) all.narrow(0, 2 + R, R).copy_(given.entropy_R);
  }
  for (comm::Group* group : {place.tp, place.cp})
    if (group && group->size() > 1) group->broadcast(all, 0);
  if (asked) return;
  given.loss = all.data_ptr<double>()[0];
  given.logprobs_R = all.narrow(0, 2, R).to(at::kFloat);
  if (all.data_ptr<double>()[1] != 0) given.entropy_R = all.narrow(0, 2 + R, R).to(at::kFloat);
}

struct Question {
  UserLoss loss;
  const algo::Algorithm& algorithm;
  algo::WeightSum weights;
};

// What a user's loss says of rows, of which the model has said `said`; on every rank of a replica that has that. Collective.
LossGradient asked(const TrainerSetup& setup, std::span<const Row> rows, const Said& said, const Question& question) {
  const model::RankPlace& place = setup.decoder.place();
  const bool speaks = place.layout.speaks(place.rank), asks = speaks && !rows.empty();
  const StepCounts counts = counts_of_all(*setup.ranks.world, speaks, rows, 0);
  LossColumns columns;
  if (asks) columns = columns_of(rows, said, question.algorithm, question.weights, counts);
  LossGradient given = question.loss(asks ? &columns : nullptr);
  if (!said.of_tokens_R.defined()) return given;
  if (!given.logprobs_R.defined()) given.logprobs_R = at::zeros_like(said.of_tokens_R);
  share_gradient(place, given);
  return given;
}

}  // namespace

Lesson Trainer::policy_lesson(std::span<const Row> rows, const algo::Algorithm& algorithm, const UserLoss& loss) const {
  const algo::WeightSum weights = weights_of(setup_, rows, algorithm);
  const bool by_advantages = !algorithm.has_kl_loss() && algorithm.entropy_coef == 0;
  Lesson lesson{.by_advantages = !loss && by_advantages};
  if (algorithm.updates.max_kl > 0) lesson.max_kl = algorithm.updates.max_kl;
  if (!loss) lesson.objective = policy_objective(rows, algorithm, weights);
  else
    lesson.late = [this, rows, question = Question{loss, algorithm, weights}](const Said& said) {
      return given_objective(rows, question.algorithm, question.weights, asked(setup_, rows, said, question));
    };
  return lesson;
}

StepReport Trainer::policy_step(std::span<const Row> rows, const algo::Algorithm& algorithm, double temperature, double lr,
                                const UserLoss& loss) {
  return step(rows, policy_lesson(rows, algorithm, loss), temperature, lr);
}

StepReport Trainer::accumulate(std::span<const Row> rows, const algo::Algorithm& algorithm, double temperature, const UserLoss& loss) {
  const Lesson lesson = policy_lesson(rows, algorithm, loss);
  auto part = std::make_unique<Step>(*this, rows, lesson);
  part->run_passes(lesson, temperature, false);
  StepReport report = std::move(part->report);
  part->report = {.activation_peak_bytes = report.activation_peak_bytes};
  if (begun_) part->join(*begun_);
  begun_ = std::move(part);
  return report;
}

StepReport Trainer::update(double lr) {
  TANDEM_CHECK(begun_, "an update without a gradient");
  const std::unique_ptr<Step> whole = std::move(begun_);
  whole->update(lr);
  return std::move(whole->report);
}

StepReport Trainer::value_step(std::span<const Row> rows, const algo::Algorithm& algorithm, double value_clip, double lr) {
  TANDEM_CHECK(setup_.table.config.num_labels > 0, "a value step of a model without a score head");
  return step(rows, {.objective = value_objective(rows, algorithm, value_clip)}, 1.0, lr);
}

StepReport Trainer::supervised_step(std::span<const Row> rows, double lr) {
  return step(rows, {.objective = supervised_objective()}, 1.0, lr);
}

}  // namespace tandem::train
