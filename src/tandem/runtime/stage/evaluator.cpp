// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/stage/evaluator.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/generate/setup.h"
#include "tandem/model/kernel/logit.h"
#include "tandem/queue/backend/exchange.h"
#include "tandem/runtime/folder/step_failed.h"

namespace tandem::runtime {
namespace {

std::vector<data::Group> answers_of_rank(const policy::RunParts& parts, const text::Tokenizer& tokenizer, Evaluation e) {
  const config::RunConfig& config = parts.config;
  const generate::ResponseEnds ends(config.rollout.stop, config.eval.sampling, e.decoder->config(), &tokenizer);
  const serve::AnswerRequest request{*e.decoder, *e.parameters, parts.memory.device, &tokenizer, config.rollout.engine,
                                     {.sampling = config.eval.sampling, .group_size = e.n, .seed = e.seed, .ends = ends,
                                      .has_episodes = config.has_episodes(), .environment = std::move(e.environment)},
                                     e.layout.dp_rank(e.rank), e.layout.dp, std::move(e.stop), e.idle_engine};
  const serve::Grading grading{e.rule, reward::grading_of(config.reward), config.schedule.queue.take_timeout_s, e.stop_grading};
  return serve::answer_and_grade(request, std::move(e.prompts), grading).groups;
}

}  // namespace

std::optional<std::vector<data::Group>> answers_of_all(const policy::RunParts& parts, const text::Tokenizer& tokenizer, Evaluation e) {
  const bool speaks = e.decoder && e.layout.speaks(e.rank);
  std::vector<data::Group> mine;
  bool stopped = false;
  std::exception_ptr fault;
  const std::string name = e.step == 0 ? "the evaluation before training" : join_text("the evaluation after step ", e.step);
  try {
    if (e.decoder) mine = answers_of_rank(parts, tokenizer, std::move(e));
  } catch (const Interrupted&) {
    stopped = true;
  } catch (const model::kernel::NotFinite&) {  // a step with such weights is no step to save
    throw;
  } catch (const UserError& error) {
    fault = std::make_exception_ptr(error.seen_from(name));
  } catch (const PeerError& error) {  // a server, or a worker
    fault = std::make_exception_ptr(PeerError(name + ": " + error.what()));
  }
  monitor::Notices& notices = *parts.config.reward.notices;
  tell_notices(parts.ranks.world, notices, notices.take());
  fail_alike(parts.ranks.world, fault);
  if (comm::any_of(parts.ranks.world, stopped)) return std::nullopt;
  return queue::exchange_groups(parts.ranks.world, std::move(mine), speaks);
}

void record_eval(monitor::Recorder& recorder, const serve::EvalSummary& summary) {
  const auto set = [&](const std::string& prefix, const serve::EvalSummary& s) {
    recorder.set(prefix + "accuracy", s.accuracy);
    recorder.set(prefix + "score_mean", s.mean_score);
    recorder.set(prefix + "pass_at_k", s.pass_at_k);
  };
  set("eval/", summary);
  for (const serve::NamedSummary& named : summary.sets) set("eval/" + named.name + "/", named.summary);
}

}  // namespace tandem::runtime
