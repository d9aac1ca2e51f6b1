// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/supervised_run.h"

#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/generate/response_text.h"
#include "tandem/runtime/folder/step_failed.h"
#include "tandem/runtime/stage/step_record.h"

namespace tandem::runtime {

SupervisedRun::SupervisedRun(const RunRequest& request, const policy::RunParts& parts, RunFolder* folder, const std::string& model_dir,
                             const model::ModelConfig& model)
    : request_(request),
      parts_(parts),
      tokenizer_(text::Tokenizer::load(model_dir)),
      reward_models_(serve::kAlone, parts.memory.device),
      reward_(reward::make_reward(reward::for_responses_of(parts.config.rollout.sampling.max_new_tokens, parts.config.reward),
                                  reward_models_.maker())),
      environment_(parts.ranks.speaks_for_train() ? policy::environment_of(parts.config) : nullptr),
      prompts_(serve::data_for(*reward_, parts.config.data, parts.config.has_episodes()), data::Split::kTrain,
               serve::PromptText{tokenizer_, model_dir}),
      actor_(parts, model, parts.config.supervised.train),
      ledger_(parts, folder, model_dir, parts.config.supervised.steps) {
  if (parts.config.supervised.steps < 1) throw UserError("supervised.steps", "is 0", "the number of supervised steps");
  if (parts.config.data.answer_column == data::kNoAnswer)
    throw UserError("data.answer_column", "is none, and supervised steps train on answers", "the field that holds them");
  const config::EvalOptions& eval = parts.config.eval;
  const model::Layout& layout = parts.ranks.train_layout;
  const bool evaluates = !parts.config.data.eval.empty() && (eval.before || eval.after || eval.every_steps > 0);
  if (evaluates && (layout.cp > 1 || layout.vpp > 1)) {
    if (parts.ranks.is_first()) log::warning("no evaluation: ", model::to_string(layout), " has cp or vpp, and generates nothing");
  } else if (evaluates) {
    eval_prompts_.emplace(serve::data_for(*reward_, parts.config.data, parts.config.has_episodes()), data::Split::kHeldOut,
                          serve::PromptText{tokenizer_, model_dir});
    eval_prompts_->require_context(eval.sampling.max_new_tokens, "eval.max_new_tokens", actor_.config().max_positions);
  }
  ledger_.files().load_start(actor_.trained());
}

void SupervisedRun::show(int64_t step, const std::string& what) {
  if (LiveLine* live = ledger_.live()) live->stage(join_text("supervised step ", step, "/", parts_.config.supervised.steps, what));
}

void SupervisedRun::step() {
  const double begin = now_s();
  const config::SupervisedOptions& o = parts_.config.supervised;
  const int64_t step = ledger_.state().step, most = actor_.config().max_positions;
  show(step + 1, "");
  std::vector<data::Prompt> prompts;
  std::vector<std::vector<int32_t>> answers;
  const std::vector<int32_t> ends = generate::stop_ids(actor_.config().eos_ids, &tokenizer_);
  fail_alike(parts_.ranks.world, [&] {
    for (int64_t i = parts_.ranks.train_dp_rank(); i < o.batch_size; i += parts_.ranks.train_layout.dp) {
      const int64_t position = step * o.batch_size + i;
      prompts.push_back(prompts_.at_position(position));
      answers.push_back(prompts_.answer_ids(prompts.back(), ends));
      const auto total = static_cast<int64_t>(prompts.back().ids.size() + answers.back().size());
      if (total > most)
        throw UserError(prompts_.where(position), join_text("prompt and answer have ", total, " tokens"),
                        join_text("at most the model's context of ", most));
    }
  });
  std::vector<train::Row> rows(prompts.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i].prompt = prompts[i].ids, rows[i].response = answers[i];
  train::StepReport report;
  fail_alike(parts_.ranks.world, [&] {
    report = actor_.trained().trainer().supervised_step(rows, train::learning_rate(o.train, step + 1, ledger_.state().lr_steps));
  });
  record(report, begin);
}

void SupervisedRun::record(const train::StepReport& report, double begin_s) {
  RunState& state = ledger_.state();
  state.version = ++state.step;
  state.tokens += static_cast<int64_t>(report.sequence_tokens);
  monitor::Recorder& recorder = parts_.recorder;
  const double seconds = now_s() - begin_s;
  recorder.set("actor/loss", report.loss);
  recorder.set("actor/grad_norm", report.grad_norm);
  recorder.set("actor/lr", report.lr);
  recorder.set("actor/entropy", report.entropy);
  if (parts_.config.supervised.train.nonfinite == "skip") recorder.set("actor/nonfinite_updates", static_cast<double>(report.nonfinite));
  recorder.set("memory/activations_bytes", static_cast<double>(report.activation_peak_bytes));
  recorder.set("time/step_s", seconds);
  recorder.set("time/train_s", seconds);
  recorder.span("train", "rank 0", begin_s, begin_s + seconds);
  record_throughput(recorder, report.sequence_tokens / seconds, parts_.ranks.world.size());
  ledger_.record_memory();
}

// By the weights as they are: each data-parallel rank answers its share.
Evaluation SupervisedRun::evaluation() {
  const policy::Ranks& ranks = parts_.ranks;
  const model::ModelOnRank& model = actor_.trained().model();
  Evaluation evaluation{.step = ledger_.state().step,
                        .decoder = &model.decoder(),
                        .parameters = &model.parameters(),
                        .layout = ranks.train_layout,
                        .rank = ranks.train_rank()};
  evaluation.rule = ranks.speaks_for_train() ? reward_.get() : nullptr;  // one rank grades each answer
  evaluation.environment = environment_;
  return evaluation;
}

// Answers the training problems that come next: in the first epoch none of them was trained on, and none is held out. All ranks
// count the same scores, so all stop or none.
bool SupervisedRun::reached_accuracy() {
  const config::SupervisedOptions& o = parts_.config.supervised;
  const int64_t step = ledger_.state().step;
  if (o.stop_at_accuracy == 0 || step % o.accuracy_every_steps != 0) return false;
  const policy::Ranks& ranks = parts_.ranks;
  show(step, join_text("  accuracy on ", o.accuracy_problems, " problems"));
  Evaluation evaluation = this->evaluation();
  for (int64_t i = ranks.train_dp_rank(); i < o.accuracy_problems; i += ranks.train_layout.dp)
    evaluation.prompts.push_back(prompts_.at_position(step * o.batch_size + i));
  const auto groups = answers_of_all(parts_, tokenizer_, std::move(evaluation));  // short: a stop waits for the next step
  TANDEM_CHECK(groups, "answers that nothing could stop");
  const double accuracy = serve::summarize(*groups, parts_.config.eval.right_at).accuracy;
  if (ranks.is_first())
    log::info("step ", step, "/", o.steps, "  accuracy ", 100 * accuracy, " % on the training problems that come next",
              prompts_.epochs(step * o.batch_size + o.accuracy_problems) <= 1 ? ", not seen yet" : "");
  return accuracy >= o.stop_at_accuracy;
}

std::optional<serve::EvalSummary> SupervisedRun::evaluate() {
  const double begin = now_s();
  const config::EvalOptions& o = parts_.config.eval;
  const policy::Ranks& ranks = parts_.ranks;
  show(ledger_.state().step, join_text("  evaluation of ", eval_prompts_->size(), " problems"));
  Evaluation evaluation = this->evaluation();
  for (int64_t row = ranks.train_dp_rank(); row < eval_prompts_->size(); row += ranks.train_layout.dp)
    evaluation.prompts.push_back(eval_prompts_->at_row(row));
  evaluation.n = o.n;
  evaluation.seed = evaluation_seed(parts_.config.run.seed);
  evaluation.stop = ranks.stop_between_tokens(request_.stop);
  evaluation.stop_grading = request_.stop;
  const auto answers = answers_of_all(parts_, tokenizer_, std::move(evaluation));
  if (!answers) return std::nullopt;
  serve::EvalSummary summary = serve::summarize(*answers, eval_prompts_->sets(), o.right_at);
  record_eval(parts_.recorder, summary);
  parts_.recorder.add("time/eval_s", now_s() - begin);
  if (SampleWriter* samples = ledger_.samples())
    samples->append_evals(data::StepId{ledger_.state().step}, serve::eval_answers(*answers, *eval_prompts_));
  return summary;
}

void SupervisedRun::evaluate_before() {
  RunState& state = ledger_.state();
  if (!eval_prompts_ || !parts_.config.eval.before || state.before || state.step > 0) return;
  if (parts_.ranks.is_first()) log::info("== evaluation before training: ", eval_prompts_->size(), " problems");
  state.before = evaluate();
  if (!state.before) stop(", in the evaluation before training");
  if (parts_.ranks.is_first()) log::info("before: accuracy ", std::round(1000 * state.before->accuracy) / 10, " %");
}

// What is left of a step when its numbers are known. A stop or a failure among the answers saves the numbers: the resumed run begins here.
bool SupervisedRun::conclude_step() {
  const config::RunConfig& config = parts_.config;
  RunState& state = ledger_.state();
  last_eval_.reset();
  state.unconcluded = parts_.recorder.current();
  const bool reached = reached_accuracy(), last = reached || state.step == config.supervised.steps;
  const int64_t every = config.eval.every_steps;
  if (eval_prompts_ && ((every > 0 && state.step % every == 0) || (last && config.eval.after))) {
    last_eval_ = evaluate();
    if (!last_eval_) stop(", in its evaluation");
  }
  state.unconcluded.clear();
  ledger_.commit(last_eval_ ? 1 : std::max<int64_t>(1, config.supervised.steps / 20));
  return reached;
}

void SupervisedRun::stop(const std::string& where) {
  ledger_.settle();
  if (!ledger_.is_saved() || !ledger_.state().unconcluded.empty()) ledger_.save(trained_);
  throw Interrupted(join_text("stopped after supervised step ", ledger_.state().step, where, "; --resume continues"));
}

RunSummary SupervisedRun::run() {
  const config::RunConfig& config = parts_.config;
  RunState& state = ledger_.state();
  ledger_.start_clock();
  if (request_.resume) ledger_.resume(trained_, {actor_.trained().lora() != nullptr, {}});
  state.lr_steps = train::lr_steps_of(config.supervised.train, state.lr_steps, config.supervised.steps);
  if (state.before && state.step == 0) record_eval(parts_.recorder, *state.before);  // stopped before the step whose metrics report it

  ledger_.open();
  try {
    evaluate_before();
    train_to_end();
    ledger_.files().exporter().write(config.run.dir, actor_.trained(), parts_.ranks.world);
    parts_.ranks.world.barrier();
    RunSummary summary = ledger_.summary();
    if (eval_prompts_ && config.eval.after) summary.after = last_eval_ ? last_eval_ : evaluate();
    if (eval_prompts_ && config.eval.after && !summary.after) stop(", in the last evaluation");
    return summary;
  } catch (const StepFailed& e) {
    end_saved(e, state.step, [this] { ledger_.save(trained_); });
  }
}

// Until the last step, or until the accuracy is reached. Errors: StepFailed; Interrupted.
void SupervisedRun::train_to_end() {
  const config::RunConfig& config = parts_.config;
  RunState& state = ledger_.state();
  bool reached = false;
  if (parts_.ranks.is_first() && state.step < config.supervised.steps)
    log::info("== training: supervised step ", state.step + 1, " to ", config.supervised.steps);
  if (!state.unconcluded.empty()) {
    for (const auto& [name, value] : state.unconcluded) parts_.recorder.set(name, value);
    reached = conclude_step();
  } else if (state.step > 0 || !config.model.path.empty()) {
    reached = reached_accuracy();
  }
  while (state.step < config.supervised.steps && !reached) {
    if (parts_.ranks.stop_agreed(request_.stop)) stop("");
    step();
    reached = conclude_step();
    ledger_.look();
    fail_alike(parts_.ranks.world, ledger_.fault());
    const int64_t every = config.checkpoint.every_steps;
    const bool last = state.step == config.supervised.steps || reached;
    if (last || (every > 0 && state.step % every == 0)) ledger_.save(trained_, !last);
  }
}

}  // namespace tandem::runtime
