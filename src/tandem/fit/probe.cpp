// SPDX-License-Identifier: Apache-2.0
#include "tandem/fit/probe.h"

#include <algorithm>
#include <cmath>

#include "tandem/base/clock.h"
#include "tandem/base/rng.h"
#include "tandem/comm/scalar.h"
#include "tandem/config/algorithm.h"
#include "tandem/device/allocation_meter.h"
#include "tandem/policy/critic.h"
#include "tandem/rollout/engine.h"
#include "tandem/train/trainer.h"

namespace tandem::fit {
namespace {

constexpr int64_t kPassTokens = 1024;    // that the larger of two passes has, where rows are short
constexpr int64_t kLongRowTokens = 4096; // from here on one row is the larger pass
constexpr int64_t kDecodeSteps = 12, kWarmSteps = 3;
constexpr int64_t kDecodePrompt = 16;
constexpr int64_t kFewSequences = 4;
constexpr double kSmallRate = 1e-6;

int64_t row_tokens(const Longest& l) { return l.prompt + l.response - 1; }

// Rows of the larger of two passes; 1: there is but one.
int64_t rows_of_pass(const Longest& l) {
  return row_tokens(l) > kLongRowTokens ? 1 : std::max<int64_t>(2, kPassTokens / row_tokens(l));
}

train::Options options_of(train::Options options, const Longest& longest) {
  options.micro_batch_tokens = rows_of_pass(longest) * (row_tokens(longest) + 1);
  return options;
}

PassBytes line_of(const Longest& longest, int64_t one, int64_t more) {
  const int64_t rows = rows_of_pass(longest), tokens = row_tokens(longest);
  return rows == 1 ? PassBytes{0, static_cast<double>(one) / static_cast<double>(tokens)} : through(tokens, one, rows * tokens, more);
}

}  // namespace

Probe::Probe(const policy::RunParts& parts, const model::ModelConfig& model, const Longest& longest)
    : parts_(parts),
      longest_(longest),
      algorithm_(config::algorithm_of(parts.config)),
      actor_(parts, model, options_of(parts.config.train, longest)) {
  RandomStream random(static_cast<uint64_t>(parts.config.run.seed), 0);
  for (int64_t i = 0; i < longest.prompt + longest.response; ++i)
    ids_.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(model.vocab_size))));
  behavior_.assign(static_cast<size_t>(longest.response), static_cast<float>(-std::log(static_cast<double>(model.vocab_size))));
}

void Probe::load(const std::string& model_dir) {
  actor_.trained().load(model_dir);
  if (!algorithm_.needs_critic()) return;
  const std::string& path = parts_.config.critic.path;
  policy::RoleSetup setup =
      policy::critic_setup(parts_.config, policy::critic_config(parts_.config, parts_.ranks.train_layout, actor_.config()));
  setup.options = options_of(setup.options, longest_);
  critic_ = std::make_unique<policy::TrainedRole>(parts_, setup);
  critic_->load(path.empty() ? model_dir : path);
}

// Each row has a prompt of its own length, so that none is shared: the most that so many tokens take.
std::vector<train::Row> Probe::rows(size_t count) const {
  std::vector<train::Row> rows(count);
  for (size_t i = 0; i < count; ++i) {
    train::Row& row = rows[i];
    const auto cut = static_cast<size_t>(longest_.prompt) - std::min(i, static_cast<size_t>(longest_.prompt) - 1);
    row.prompt = std::span(ids_).first(cut);
    row.response = std::span(ids_).last(behavior_.size());
    row.behavior = behavior_;
    row.fresh = true;
    if (algorithm_.needs_reference()) row.reference = behavior_;
    row.advantages.assign(behavior_.size(), i % 2 == 0 ? 1.0F : -1.0F);
    if (critic_) row.values = row.returns = row.advantages;
  }
  return rows;
}

Probe::Pass Probe::train(policy::TrainedRole& role, size_t count) {
  const std::vector<train::Row> all = rows(count);
  const double begin = now_s();
  const config::RunConfig& c = parts_.config;
  const train::StepReport report =
      &role == critic_.get() ? role.trainer().value_step(all, algorithm_, c.critic.value_clip, kSmallRate)
                             : role.trainer().policy_step(all, algorithm_, c.rollout.sampling.temperature, kSmallRate);
  Pass pass{0, report.activation_peak_bytes, 0};
  for (const train::Row& row : all) pass.tokens += row.num_tokens() - 1;
  pass.tokens_s = static_cast<double>(pass.tokens) / (now_s() - begin);
  return pass;
}

Probe::Pass Probe::score(const policy::TrainedRole& role, size_t count) {
  const std::vector<train::Row> all = rows(count);
  const double begin = now_s();
  const model::Decoder& decoder = role.model().decoder();
  const int64_t budget = role.trainer().options().micro_batch_tokens;
  device::AllocationMeter meter(parts_.memory.device, train::kActivations);
  if (&role == critic_.get()) (void)train::token_values(decoder, role.trainer().parameters(), all, budget);
  else (void)train::score(decoder, role.trainer().parameters(), all, parts_.config.rollout.sampling.temperature, budget);
  Pass pass{0, meter.peak_bytes(), 0};
  for (const train::Row& row : all) pass.tokens += row.num_tokens() - 1;
  pass.tokens_s = static_cast<double>(pass.tokens) / (now_s() - begin);
  return pass;
}

rollout::Options Probe::engine_options(int64_t running) const {
  rollout::Options options = parts_.config.rollout.engine;
  options.max_running = running;
  return options;
}

// Made-up prompts, as many tokens from each. Every rank asks for the same.
double Probe::decode_tokens_s(int64_t running) {
  const model::ModelConfig& config = actor_.config();
  rollout::Engine engine(engine_options(running), {actor_.rollout_decoder(), parts_.memory.device, config.vocab_size,
                                                   std::min<int64_t>(config.max_positions, kDecodePrompt + kDecodeSteps + 1)});
  rollout::switch_weights(&engine, parts_.ranks.world, [this] { return actor_.send_weights(); }, data::PolicyVersion{0});
  const int64_t prompt = std::min<int64_t>(kDecodePrompt, std::ssize(ids_) / 2);
  for (int64_t i = 0; i < running; ++i) {
    rollout::Request request;
    request.prompt.assign(ids_.begin(), ids_.begin() + std::max<int64_t>(1, prompt));
    request.prompt.front() = static_cast<int32_t>(i % config.vocab_size);  // else twins would run as one
    request.sample = data::SampleId{i};
    request.sampling = parts_.config.rollout.sampling;  // to filter takes memory
    request.sampling.max_new_tokens = std::clamp<int64_t>(config.max_positions - prompt - 1, 1, kDecodeSteps);
    request.sampling.ignore_eos = true;
    request.seed = static_cast<uint64_t>(parts_.config.run.seed);
    engine.submit(std::move(request));
  }
  for (int64_t i = 0; i < kWarmSteps && engine.must_step(); ++i) engine.step();
  const int64_t before = engine.counts().drawn;
  const double begin = now_s();
  while (engine.must_step()) engine.step();
  const double tokens_s = static_cast<double>(engine.counts().drawn - before) / std::max(1e-9, now_s() - begin);
  packed_bytes_ = std::max(packed_bytes_, parts_.memory.device.bytes("packed"));
  graph_bytes_ = parts_.memory.device.bytes("logits") + parts_.memory.device.bytes("graphs");
  return -comm::max_over(parts_.ranks.world, -tokens_s);
}

int64_t Probe::decode_bytes(int64_t running) {
  device::AllocationMeter meter(parts_.memory.device, train::kActivations);
  (void)decode_tokens_s(running);
  return meter.peak_bytes() + graph_bytes_;
}

void Probe::probe_passes(policy::TrainedRole& role, PassBytes& trained, PassBytes& scored, double& trained_s, double& scored_s) {
  const auto more = static_cast<size_t>(rows_of_pass(longest_));
  (void)train(role, 1);  // what is made once is made
  const int64_t one = train(role, 1).bytes;
  const Pass larger = train(role, more);
  trained = line_of(longest_, one, larger.bytes);
  trained_s = larger.tokens_s;
  const int64_t scored_one = score(role, 1).bytes;
  const Pass scored_more = score(role, more);
  scored = line_of(longest_, scored_one, scored_more.bytes);
  scored_s = scored_more.tokens_s;
}

Measured Probe::measure(Measured m) {
  probe_passes(actor_.trained(), m.train, m.score, m.train_tokens_s, m.score_tokens_s);
  if (critic_) probe_passes(*critic_, m.value_train, m.values, m.value_train_tokens_s, m.values_tokens_s);
  const int64_t few = decode_bytes(kFewSequences), many = decode_bytes(2 * kFewSequences);
  m.decode = through(kFewSequences, few - packed_bytes_, 2 * kFewSequences, many - packed_bytes_);  // the packed copy is held, not taken
  const model::kernel::AttentionShape& shape = actor_.rollout_decoder().attention_shape();
  const model::kernel::Kernels& kernels = actor_.rollout_decoder().kernels();
  m.block_tokens = rollout::block_tokens_of(parts_.config.rollout.engine, kernels.attention(), kernels.device().type());
  m.kv_token_bytes = 2 * actor_.rollout_decoder().num_layers() * shape.num_kv_heads * shape.head_dim *
                     static_cast<int64_t>(c10::elementSize(parts_.compute.rollout().dtype()));
  for (const auto& [owner, bytes] : parts_.memory.device.by_owner()) held_[owner] = bytes;
  held_["packed"] = packed_bytes_;
  return m;
}

}  // namespace tandem::fit
