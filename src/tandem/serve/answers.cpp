// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/answers.h"

#include <map>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/reward/scorer.h"
#include "tandem/generate/generator.h"

namespace tandem::serve {

int64_t answer_prompts(const AnswerRequest& r, std::vector<data::Prompt> prompts, const std::function<void(data::Group&&)>& emit) {
  const model::ModelConfig& config = r.decoder.config();
  int64_t longest = 1;
  for (const data::Prompt& p : prompts) longest = std::max<int64_t>(longest, static_cast<int64_t>(p.ids.size()));
  const int64_t num_tokens = r.tokenizer ? std::min(r.tokenizer->vocab_size(), config.vocab_size) : config.vocab_size;
  std::unique_ptr<rollout::Engine> own;
  if (!r.idle_engine) {
    own = std::make_unique<rollout::Engine>(r.engine, rollout::EngineSetup{r.decoder, r.arena, num_tokens,
                                                                           std::min(config.max_positions, longest + r.setup.sampling.max_new_tokens)});
    own->switch_weights(r.parameters, data::PolicyVersion{0});
  }
  rollout::Engine& engine = own ? *own : *r.idle_engine;
  generate::Generator generator(r.setup, engine, generate::peers_of(r.decoder.place(), 0));
  for (size_t i = 0; i < prompts.size(); ++i)
    generator.admit(data::GroupId{r.first_group + static_cast<int64_t>(i) * r.group_stride}, std::move(prompts[i]));
  int64_t tokens = 0, next = r.first_group;
  std::map<int64_t, data::Group> done;
  using Goes = generate::Generator::Goes;
  Goes goes = Goes::kOn;
  while (generator.step() || (r.setup.has_episodes && goes == Goes::kOn)) {
    if (r.stop_requested && r.stop_requested()) throw Interrupted("stopped while answering");
    for (data::Group& group : generator.take_ended()) {
      for (const data::Sample& s : group.samples) tokens += static_cast<int64_t>(s.ids.size());
      done.emplace(value(group.id), std::move(group));
    }
    if (r.setup.has_episodes) goes = generator.goes_on();
    if (goes == Goes::kFailed) break;  // all that draw together at once; one of them says why
    for (auto it = done.find(next); it != done.end(); it = done.find(next += r.group_stride)) {
      emit(std::move(it->second));
      done.erase(it);
    }
  }
  if (generator.fault()) std::rethrow_exception(generator.fault());
  return tokens;
}

Graded answer_and_grade(const AnswerRequest& request, std::vector<data::Prompt> prompts, const Grading& grading,
                        const std::function<void(const data::Group&)>& graded) {
  Graded all;
  const auto take = [&](data::Group&& group) {
    if (graded) graded(group);
    all.groups.push_back(std::move(group));
  };
  std::optional<reward::Scorer> scorer;
  if (grading.rule) scorer.emplace(*grading.rule, grading.how);
  // Peers of the engine draw the other tokens with this rank.
  const bool alone = request.decoder.place().layout.world() == request.decoder.place().layout.dp;
  std::exception_ptr fault;
  const double begin = now_s();
  const int64_t tokens = answer_prompts(request, std::move(prompts), [&](data::Group&& group) {
    if (!scorer) return take(std::move(group));
    if (fault) return;
    try {
      scorer->submit(std::move(group));
      while (auto next = scorer->collect(Deadline::after_s(0))) take(std::move(*next));
    } catch (const std::exception&) {
      if (alone) throw;
      fault = std::current_exception();
    }
  });
  if (fault) std::rethrow_exception(fault);
  all.tokens_per_s = static_cast<double>(tokens) / std::max(1e-9, now_s() - begin);
  if (scorer)
    for (data::Group& group : scorer->collect_all(grading.timeout_s, grading.stop)) take(std::move(group));
  return all;
}

std::vector<data::EvalAnswer> eval_answers(const std::vector<data::Group>& groups, const PromptStream& prompts) {
  std::vector<data::EvalAnswer> answers;
  auto group = groups.begin();
  for (const PromptStream::Set& set : prompts.sets()) {
    TANDEM_CHECK(set.size <= groups.end() - group, groups.size(), " groups end within the set ", set.name);
    for (const auto end = group + set.size; group != end; ++group)
      for (const data::Sample& s : group->samples)
        answers.push_back({group->prompt.row, group->prompt.text, group->prompt.answer, s.text, s.score, set.name,
                           prompts.question(group - groups.begin())});
  }
  return answers;
}

EvalSummary summarize(std::span<const data::Group> groups, double right_at) {
  EvalSummary s;
  double right = 0, answers = 0, solved = 0, scores = 0;
  for (const data::Group& group : groups) {
    bool any = false;
    for (const data::Sample& sample : group.samples) {
      const bool ok = sample.score >= right_at;
      right += ok, answers += 1, scores += sample.score;
      any |= ok;
    }
    solved += any;
  }
  s.num_problems = static_cast<int64_t>(groups.size());
  if (answers > 0) s.mean_score = scores / answers, s.accuracy = right / answers, s.pass_at_k = solved / static_cast<double>(groups.size());
  return s;
}

EvalSummary summarize(std::span<const data::Group> groups, const std::vector<PromptStream::Set>& sets, double right_at) {
  EvalSummary all = summarize(groups, right_at);
  size_t begin = 0;
  for (const PromptStream::Set& set : sets) {
    const auto size = static_cast<size_t>(set.size);
    TANDEM_CHECK(begin + size <= groups.size(), groups.size(), " groups end within the set ", set.name);
    if (!set.name.empty()) all.sets.push_back({set.name, summarize(groups.subspan(begin, size), right_at)});
    begin += size;
  }
  return all;
}

}  // namespace tandem::serve
