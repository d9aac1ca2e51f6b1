// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/supervised_run.h"

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/reward/scorer.h"
#include "tandem/runtime/exchange.h"
#include "tandem/runtime/reward_model/reward_model.h"
#include "tandem/runtime/session/evaluation.h"
#include "tandem/runtime/session/response_text.h"

namespace tandem::runtime {

SupervisedRun::SupervisedRun(const RunRequest& request, RankContext& context, RunFolder* folder, const std::string& model_dir)
    : request_(request),
      config_(context.config),
      context_(context),
      folder_(folder),
      model_dir_(model_dir),
      tokenizer_(text::Tokenizer::load(model_dir)),
      reward_(reward::make_reward(config_.reward, reward_models(context.device, kAlone))),
      prompts_(data_for(*reward_, config_.data), data::Split::kTrain, PromptText{tokenizer_, model_dir}),
      actor_(context, model::read_config(model_dir), config_.supervised.train),
      files_(context, config_.run.dir, model_dir),
      progress_(config_.supervised.steps) {
  if (config_.data.answer_column == data::kNoAnswer)
    throw UserError("data.answer_column", "is none, and supervised steps train on answers", "the field that holds them");
  files_.load_start(actor_);
}

void SupervisedRun::step() {
  const double begin = now_s();
  const SupervisedOptions& o = config_.supervised;
  std::vector<data::Prompt> prompts;
  std::vector<std::vector<int32_t>> answers;
  const std::vector<int32_t> ends = stop_ids(actor_.train_model().config().eos_ids, &tokenizer_);
  const int dp = context_.train_layout.dp, me = context_.train_layout.dp_rank(context_.train_rank());
  for (int64_t i = me; i < o.batch_size; i += dp) {
    const int64_t position = state_.step * o.batch_size + i;
    prompts.push_back(prompts_.at_position(position));
    answers.push_back(tokenizer_.encode(prompts.back().answer));
    if (!ends.empty()) answers.back().push_back(ends.front());
    const auto total = static_cast<int64_t>(prompts.back().ids.size() + answers.back().size());
    if (total > actor_.train_model().config().max_positions)
      throw UserError(prompts_.where(position), join_text("prompt and answer have ", total, " tokens"),
                      join_text("at most the model's context of ", actor_.train_model().config().max_positions));
  }
  std::vector<train::Row> rows(prompts.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i].prompt = prompts[i].ids, rows[i].response = answers[i];
  const double lr = train::learning_rate(o.train, state_.step + 1, o.steps);
  const train::StepReport report = actor_.trainer().supervised_step(rows, lr);
  state_.version = ++state_.step;
  state_.tokens += static_cast<int64_t>(report.sequence_tokens);
  monitor::Recorder& recorder = context_.recorder;
  recorder.set("actor/loss", report.loss);
  recorder.set("actor/grad_norm", report.grad_norm);
  recorder.set("actor/lr", report.lr);
  recorder.set("actor/entropy", report.entropy);
  recorder.set("memory/activations_bytes", static_cast<double>(report.activation_peak_bytes));
  recorder.set("time/step_s", now_s() - begin);
  recorder.set("time/train_s", now_s() - begin);
  recorder.span("train", "train", begin, now_s());
  recorder.set("throughput/tokens_per_s", report.sequence_tokens / (now_s() - begin));
  record_memory(context_);
  const monitor::Metrics metrics = recorder.commit_step(state_.step);
  const int64_t every = std::max<int64_t>(1, o.steps / 20);
  if (context_.is_first() && (state_.step % every == 0 || state_.step == o.steps)) progress_.step(state_.step, metrics);
}

// Answers the training problems that come next: in the first epoch none of them was trained on, and none is held out. Each
// data-parallel rank answers some; one rank scores each answer and all count the same scores, so all stop or none.
bool SupervisedRun::reached_accuracy() {
  const SupervisedOptions& o = config_.supervised;
  if (o.stop_at_accuracy == 0 || state_.step % o.accuracy_every_steps != 0) return false;
  const int dp = context_.train_layout.dp, me = context_.train_layout.dp_rank(context_.train_rank());
  std::vector<data::Prompt> prompts;
  for (int64_t i = me; i < o.accuracy_problems; i += dp) prompts.push_back(prompts_.at_position(state_.step * o.batch_size + i));
  const model::ModelOnRank& model = actor_.train_model();
  const AnswerRequest request{model.decoder(), model.parameters(), context_.device, &tokenizer_, config_.rollout.engine, config_.eval.sampling,
                              config_.rollout.stop, 1, 0, me, dp, {}};  // short: a stop waits for the next step
  std::vector<data::Group> mine;
  answer_prompts(request, std::move(prompts), [&](data::Group&& group) {
    if (context_.speaks_for_train()) reward::score_group(*reward_, group);
    mine.push_back(std::move(group));
  });
  const auto groups = exchange_groups(context_.world, std::move(mine), context_.speaks_for_train());
  const double accuracy = summarize(groups, config_.eval.right_at).accuracy;
  if (context_.is_first()) log::info("step ", state_.step, "/", o.steps, "  accuracy ", 100 * accuracy, " % on the training problems that come next",
                                    prompts_.epochs(state_.step * o.batch_size + o.accuracy_problems) <= 1 ? ", not seen yet" : "");
  return accuracy >= o.stop_at_accuracy;
}

void SupervisedRun::save() {
  if (folder_) {
    folder_->samples().flush();
    state_.sink_bytes = context_.recorder.flush();
  }
  state_.seconds = seconds_before_ + now_s() - started_s_;
  files_.save(state_, actor_);
}

RunSummary SupervisedRun::run() {
  started_s_ = now_s();
  if (config_.supervised.steps < 1) throw UserError("supervised.steps", "is 0", "the number of supervised steps");
  if (request_.resume)
    if (std::optional<RunState> found = files_.load(actor_, actor_.lora() != nullptr)) state_ = std::move(*found);
  seconds_before_ = state_.seconds;
  if (folder_) folder_->open_sinks(context_.recorder, state_.sink_bytes, state_.step);
  if (context_.is_first()) log::info(context_.products_text());
  bool reached = state_.step > 0 && reached_accuracy();
  while (state_.step < config_.supervised.steps && !reached) {
    if (context_.stop_agreed()) {
      if (files_.last_saved_step() != state_.step) save();
      throw Interrupted(join_text("stopped after supervised step ", state_.step, "; --resume continues"));
    }
    step();
    reached = reached_accuracy();
    const int64_t every = config_.checkpoint.every_steps;
    if ((every > 0 && state_.step % every == 0) || state_.step == config_.supervised.steps || reached) save();
  }
  files_.exporter().write(config_.run.dir, actor_);
  context_.world.barrier();
  return {{}, {}, state_.step, seconds_before_ + now_s() - started_s_, state_.tokens};
}

}  // namespace tandem::runtime
