// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/inference.h"

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/device/process.h"
#include "tandem/model/model_on_rank.h"
#include "tandem/serve/reward_model.h"
#include "tandem/serve/answers.h"
#include "tandem/train/trainer.h"

namespace tandem::serve {

struct Inference::State {
  InferenceOptions options;
  device::Arena arena{"device"};
  model::kernel::Gemm gemm;
  model::ModelOnRank model;
  std::optional<text::Tokenizer> tokenizer;

  explicit State(const InferenceOptions& o)
      : options(o), gemm(model::dtype_of(o.dtype, "--dtype"), o.parity), model(model::read_config(o.model), {}, gemm, {arena, "weights"}) {
    model.load(o.model);
    if (text::Tokenizer::present_in(o.model)) tokenizer = text::Tokenizer::load(o.model);
  }
};

Inference::Inference(const InferenceOptions& options) {
  if (options.device != "cpu") throw UserError("--device", options.device + " is not in this build", "cpu");
  device::set_compute_threads(static_cast<int>(options.threads > 0 ? options.threads : device::num_cores()));
  state_ = std::make_unique<State>(options);
}
Inference::~Inference() = default;

const text::Tokenizer* Inference::tokenizer() const { return state_->tokenizer ? &*state_->tokenizer : nullptr; }

double Inference::generate(std::vector<data::Prompt> prompts, const GenerateOptions& options, const std::function<void(const data::Group&)>& emit) {
  return answer(std::move(prompts), options, {}, emit).tokens_per_s;
}

Graded Inference::answer(std::vector<data::Prompt> prompts, const GenerateOptions& options, const Grading& grading,
                         const std::function<void(const data::Group&)>& graded) {
  if (prompts.empty()) return {};
  const AnswerRequest request{state_->model.decoder(), state_->model.parameters(), state_->arena, tokenizer(), state_->options.engine, options.sampling,
                              options.stop, options.n, static_cast<uint64_t>(state_->options.seed), 0, 1, {}};
  return answer_and_grade(request, std::move(prompts), grading, graded);
}

std::vector<float> Inference::logprobs(std::span<const int32_t> ids, double temperature) {
  const model::ModelConfig& config = state_->model.config();
  for (int32_t id : ids)
    if (id < 0 || id >= config.vocab_size) throw UserError("ids", join_text("token id ", id), join_text("0 to ", config.vocab_size - 1));
  if (static_cast<int64_t>(ids.size()) > config.max_positions)
    throw UserError("ids", join_text(ids.size(), " tokens"), join_text("at most the model's context of ", config.max_positions));
  if (ids.size() < 2) return {};
  train::Row row;
  row.prompt = ids.first(1);
  row.response = ids.subspan(1);
  return train::score(state_->model.decoder(), state_->model.parameters(), std::span(&row, 1), temperature, static_cast<int64_t>(ids.size())).front();
}

EvalSummary evaluate(const EvalRequest& request, const std::function<void(const data::Group&)>& emit) {
  RewardModels reward_models(kBesideGeneration);
  const std::unique_ptr<reward::Rule> rule = reward::make_reward(
      reward::for_responses_of(request.generate.sampling.max_new_tokens, request.reward), reward_models.maker());
  Inference inference(request.inference);
  if (!inference.tokenizer()) throw UserError(request.inference.model, "has no tokenizer", "a directory with tokenizer.json or vocab.json");
  const PromptStream stream(data_for(*rule, request.data), data::Split::kHeldOut,
                            PromptText{*inference.tokenizer(), request.inference.model});
  std::vector<data::Prompt> prompts;
  for (int64_t row = 0; row < stream.size(); ++row) prompts.push_back(stream.at_row(row));
  const Graded graded = inference.answer(std::move(prompts), request.generate, {rule.get(), request.reward.workers}, emit);
  EvalSummary summary = summarize(graded.groups, request.right_at);
  summary.tokens_per_s = graded.tokens_per_s;
  return summary;
}

}  // namespace tandem::serve
