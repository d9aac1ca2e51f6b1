// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/inference.h"

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"
#include "tandem/generate/generator.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/serve/reward_model.h"
#include "tandem/serve/answers.h"
#include "tandem/serve/generation_defaults.h"
#include "tandem/train/trainer.h"

namespace tandem::serve {

struct Inference::State {
  InferenceOptions options;
  device::Arena arena;
  model::kernel::Kernels kernels;
  model::ModelConfig config;
  std::optional<text::Tokenizer> tokenizer;
  std::unique_ptr<model::ModelOnRank> loaded;  // of model(); null before its first call
  std::unique_ptr<rollout::Engine> engine;     // of answer_one; null before its first call
  int64_t num_answers = 0;                     // each has random numbers of its own

  State(const InferenceOptions& o, at::Device device)
      : options(o),
        arena("device", 0, device),
        kernels(model::kernel::backend_named(o.kernels, device, "--kernels"), model::dtype_of(o.dtype, "--dtype"), o.parity, device),
        config(model::read_config(o.model)) {
    if (text::Tokenizer::present_in(o.model)) tokenizer = text::Tokenizer::load(o.model);
  }

  const model::ModelOnRank& model() {
    if (loaded) return *loaded;
    auto reading = std::make_unique<model::ModelOnRank>(config, model::RankPlace{}, kernels, device::Home{arena, "weights"});
    reading->load(options.model);
    loaded = std::move(reading);
    return *loaded;
  }

  rollout::Engine& one_at_a_time() {
    if (engine) return *engine;
    rollout::Options alone = options.engine;
    alone.max_running = 1;
    const int64_t num_tokens = tokenizer ? std::min(tokenizer->vocab_size(), config.vocab_size) : config.vocab_size;
    engine = std::make_unique<rollout::Engine>(
        alone, rollout::EngineSetup{model().decoder(), arena, num_tokens, config.max_positions});
    engine->switch_weights(model().parameters(), data::PolicyVersion{0});
    return *engine;
  }
};

Inference::Inference(const InferenceOptions& options) {
  const at::Device device = device::device_named(options.device, "--device");
  device::set_compute_threads(static_cast<int>(options.threads > 0 ? options.threads : device::num_cores()));
  device::backend_of(device).use(device);
  state_ = std::make_unique<State>(options, device);
}
Inference::~Inference() = default;

void Inference::load() { (void)state_->model(); }

const text::Tokenizer* Inference::tokenizer() const { return state_->tokenizer ? &*state_->tokenizer : nullptr; }

Graded Inference::answer(std::vector<data::Prompt> prompts, const GenerateOptions& options, const Grading& grading,
                         const std::function<void(const data::Group&)>& graded) {
  if (prompts.empty()) return {};
  say_not_followed(state_->options.model, options.sampling);
  const AnswerRequest request{state_->model().decoder(), state_->model().parameters(), state_->arena, tokenizer(), state_->options.engine,
                              {.sampling = options.sampling,
                               .group_size = options.n,
                               .seed = static_cast<uint64_t>(state_->options.seed),
                               .ends = {options.stop, options.sampling, state_->config, tokenizer()},
                               .has_episodes = options.environment != nullptr,
                               .environment = options.environment}};
  return answer_and_grade(request, std::move(prompts), grading, graded);
}

data::Sample Inference::answer_one(std::vector<int32_t> prompt, const GenerateOptions& options,
                                   const std::function<bool(int32_t)>& goes_on) {
  say_not_followed(state_->options.model, options.sampling);
  generate::Generator generator({.sampling = options.sampling,
                                 .seed = static_cast<uint64_t>(state_->options.seed),
                                 .ends = {{}, options.sampling, state_->config, tokenizer()},
                                 .make_listener = [&goes_on] { return goes_on; }},
                                state_->one_at_a_time());
  generator.admit(data::GroupId{state_->num_answers++}, {.ids = std::move(prompt)});
  while (generator.step()) continue;
  return std::move(generator.take_ended().at(0).samples.at(0));
}

int64_t Inference::max_positions() const { return state_->config.max_positions; }
int64_t Inference::vocab_size() const { return state_->config.vocab_size; }

int64_t Inference::context_tokens() {
  const rollout::EngineCounts counts = state_->one_at_a_time().counts();
  return std::min(state_->config.max_positions, counts.blocks * counts.block_tokens);
}

std::vector<float> Inference::logprobs(std::span<const int32_t> ids, double temperature) {
  const model::ModelConfig& config = state_->config;
  for (int32_t id : ids)
    if (id < 0 || id >= config.vocab_size) throw UserError("ids", join_text("token id ", id), join_text("0 to ", config.vocab_size - 1));
  if (static_cast<int64_t>(ids.size()) > config.max_positions)
    throw UserError("ids", join_text(ids.size(), " tokens"), join_text("at most the model's context of ", config.max_positions));
  if (ids.size() < 2) return {};
  train::Row row;
  row.prompt = ids.first(1);
  row.response = ids.subspan(1);
  return train::score(state_->model().decoder(), state_->model().parameters(), std::span(&row, 1), temperature, static_cast<int64_t>(ids.size())).front();
}

EvalSummary evaluate(const EvalRequest& request, const std::function<void(const data::Group&)>& emit) {
  RewardModels reward_models(kBesideGeneration);
  const std::unique_ptr<reward::Rule> rule = reward::make_reward(
      reward::for_responses_of(request.generate.sampling.max_new_tokens, request.reward), reward_models.maker());
  Inference inference(request.inference);
  if (!inference.tokenizer()) throw UserError(request.inference.model, "has no tokenizer", "a directory with tokenizer.json or vocab.json");
  GenerateOptions generate = request.generate;
  generate.environment = generate::make_environment(request.episode, request.reward);
  const PromptStream stream(data_for(*rule, request.data, generate.environment != nullptr), data::Split::kHeldOut,
                            PromptText{*inference.tokenizer(), request.inference.model});
  stream.require_context(request.generate.sampling.max_new_tokens, "--max-new-tokens", inference.max_positions());
  std::vector<data::Prompt> prompts;
  for (int64_t row = 0; row < stream.size(); ++row) prompts.push_back(stream.at_row(row));
  const Graded graded = inference.answer(std::move(prompts), generate, {rule.get(), request.reward.workers}, emit);
  EvalSummary summary = summarize(graded.groups, stream.sets(), request.right_at);
  summary.tokens_per_s = graded.tokens_per_s;
  return summary;
}

}  // namespace tandem::serve
