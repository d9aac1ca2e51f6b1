// SPDX-License-Identifier: Apache-2.0
// Held-out problems, answered and scored between two steps.
#include "tandem/runtime/rl_run.h"

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/runtime/exchange.h"

namespace tandem::runtime {

// This rank's part of the held-out problems, answered and scored. Errors: Interrupted.
std::vector<data::Group> RlRun::answers_of_rank() {
  const int dp = context_.rollout_layout.dp, me = context_.rollout_layout.dp_rank(context_.rollout_rank());
  std::vector<data::Prompt> prompts;
  for (int64_t row = me; row < eval_prompts_->size(); row += dp) prompts.push_back(eval_prompts_->at_row(row));
  const model::ModelOnRank& model = actor_.rollout_model();
  rollout::Engine* idle = rollout_ ? rollout_->idle_engine() : nullptr;
  // Unfinished sequences have the one cache that there is room for.
  const bool makes_room = rollout_ && !idle && config_.memory.device_mib > 0;
  if (makes_room) rollout_->release_memory();
  // A seed of its own, so that evaluation never draws the numbers of training.
  const AnswerRequest request{model.decoder(), model.parameters(), context_.device, &tokenizer_, config_.rollout.engine,
                              config_.eval.sampling,
                              config_.rollout.stop, config_.eval.n, static_cast<uint64_t>(config_.run.seed) ^ 0x65766171ull, me, dp,
                              context_.stop_between_tokens(), idle};
  std::vector<data::Group> answers;
  if (scores_in_stage(config_)) {
    answer_prompts(request, std::move(prompts), [&](data::Group&& group) { answers.push_back(std::move(group)); });
  } else {
    reward::Scorer scorer(*reward_, config_.reward.workers);
    answer_prompts(request, std::move(prompts), [&](data::Group&& group) { scorer.submit(std::move(group)); });
    answers = scorer.collect_all(config_.schedule.queue.take_timeout_s);
  }
  if (makes_room) rollout_->regain_memory(rollout_weights());
  return answers;
}

// The reward model comes for them, and then what generates again.
void RlRun::score_answers(std::vector<data::Group>& answers) {
  if (!scores_in_stage(config_)) return;
  const int dp = context_.train_layout.dp, me = context_.trains() ? context_.train_layout.dp_rank(context_.train_rank()) : -1;
  std::vector<size_t> mine;
  std::vector<reward::Answer> asked;
  size_t row = 0;
  for (data::Group& group : answers) group.prompt = eval_prompts_->at_row(group.prompt.row);  // messages do not travel
  for (const data::Group& group : answers)
    for (const data::Sample& sample : group.samples)
      if (const size_t i = row++; static_cast<int>(i) % dp == me) {
        mine.push_back(i);
        asked.push_back(reward::answer_of(group, sample));
      }
  enter(schedule_.stage(planner::StageKind::kReward));
  set_scores(answers, model_scores(row, mine, asked));
  enter(schedule_.stage(planner::StageKind::kSwitch));
  move_weights();
}

std::optional<EvalSummary> RlRun::evaluate(int64_t step) {
  const double begin = now_s();
  std::vector<data::Group> mine;
  bool stopped = false;
  try {
    if (context_.rolls_out()) mine = answers_of_rank();
  } catch (const Interrupted&) {
    stopped = true;
  }
  if (context_.any(stopped)) return std::nullopt;
  std::vector<data::Group> all = exchange_groups(context_.world, std::move(mine), context_.speaks_for_rollout());
  score_answers(all);
  EvalSummary summary = summarize(all, config_.eval.right_at);
  context_.recorder.set("eval/accuracy", summary.accuracy);
  context_.recorder.set("eval/score_mean", summary.mean_score);
  context_.recorder.set("eval/pass_at_k", summary.pass_at_k);
  context_.recorder.add("time/eval_s", now_s() - begin);
  if (folder_) {
    std::vector<data::EvalAnswer> answers;
    for (const data::Group& group : all)
      for (const data::Sample& s : group.samples) answers.push_back({group.prompt.row, group.prompt.text, group.prompt.answer, s.text,
                                                                     s.score});
    folder_->samples().append_evals(data::StepId{step}, answers);
  }
  return summary;
}

}  // namespace tandem::runtime
