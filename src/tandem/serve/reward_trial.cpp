// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/reward_trial.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/log.h"
#include "tandem/reward/scorer.h"
#include "tandem/serve/prompt_stream.h"

namespace tandem::serve {
namespace {

constexpr std::chrono::milliseconds kMoment{50};  // between looks at whether to stop
constexpr size_t kMadeUpTokens = 12;  // of each answer, for rules that go by lengths

// Weights are read later, once.
std::unique_ptr<reward::Rule> no_model(const reward::Options&) {
  const auto zero = [](const reward::Answer&) { return reward::Score(); };
  return std::make_unique<reward::FunctionRule>("model", zero, reward::FunctionRule::Needs{false, false});
}

// The first row of a training set; nullopt where its messages cannot be rendered yet.
struct First {
  data::Prompt prompt;
  std::string where;
};
std::optional<First> first_row(const RewardTrial& trial, data::Options data) {
  data.mix.clear();
  data.max_prompt_tokens = 0;
  data.curriculum_column.clear();
  const std::unique_ptr<data::PromptSource> source = data::open_source(data.train, data, data::Split::kTrain);
  const First plain{source->at(0), source->where(0)};
  if (plain.prompt.messages.empty()) return plain;
  if (!text::Tokenizer::present_in(trial.model_dir)) return std::nullopt;
  const text::Tokenizer tokenizer = text::Tokenizer::load(trial.model_dir);
  return First{PromptStream(data, data::Split::kTrain, {tokenizer, trial.model_dir}).at_row(0), plain.where};
}

data::Group made_up_group(const RewardTrial& trial, data::Prompt prompt) {
  data::Group group;
  group.prompt = std::move(prompt);
  for (int64_t i = 0; i < trial.group_size; ++i) {
    data::Sample& sample = group.samples.emplace_back();
    sample.text = i % 2 == 0 && !group.prompt.answer.empty() ? group.prompt.answer : kMadeUpAnswer;
    sample.ids.assign(kMadeUpTokens, 0);
  }
  return group;
}

// The group with its scores. Waits beside the rule, so that it can be told to end. Errors: what it throws; PeerError; Interrupted.
data::Group scored(const reward::Rule& rule, data::Group group, double timeout_s, const StopRequested& stop) {
  const Deadline deadline = Deadline::after_s(timeout_s);
  std::future<void> graded = std::async(std::launch::async, [&] { reward::score_group(rule, group); });
  bool stopped = false, late = false;
  while (graded.wait_for(kMoment) != std::future_status::ready) {
    stopped = stopped || (stop && stop());
    late = late || deadline.passed();
    if (stopped || late) rule.abandon();
  }
  if (stopped) throw Interrupted("stopped while the reward was tried; nothing was made");
  if (late) throw PeerError(join_text("it takes over ", timeout_s, " s (schedule.take_timeout_s)"));
  graded.get();
  return group;
}

void try_on(const RewardTrial& trial, const reward::Rule& rule, First first, const StopRequested& stop) {
  const std::string where = "the reward, tried before the run with made-up answers to " + first.where;
  try {
    const data::Group group = scored(rule, made_up_group(trial, std::move(first.prompt)), trial.timeout_s, stop);
    if (std::ranges::all_of(group.samples, [](const data::Sample& sample) { return sample.parts.empty(); }))
      log::warning(where, ": it gave None for all of them; an answer with None scores 0 (docs/rewards.md)");
  } catch (const UserError& e) {
    if (trial.reward.on_error == "end")
      throw e.seen_from(where, "nothing was made or changed: mend the function and run the command again; or let "
                               "reward.on_error=zero give 0 to answers that fail");
    log::warning(e.seen_from(where, "reward.on_error is zero: what fails so in the run scores 0").what());
  } catch (const PeerError& e) {
    if (trial.reward.on_error == "end") throw PeerError(where + ": " + e.what());
    log::warning(where, ": ", e.what());
  }
}

// Of each training set.
void each_first(const RewardTrial& trial, const data::Options& data, const std::function<void(First)>& act) {
  for (const data::MixPart& part : data::mix_of(data)) {
    data::Options one = data;
    one.train = part.path;
    if (std::optional<First> first = first_row(trial, one)) act(std::move(*first));
  }
}

}  // namespace

void try_reward(const RewardTrial& trial, const StopRequested& stop) {
  const std::unique_ptr<reward::Rule> rule = reward::make_reward(trial.reward, no_model);
  if (reward::rule_names(trial.reward) == std::vector<std::string>{"episode"}) return;  // an environment scores
  each_first(trial, data_for(*rule, trial.data), [&](First first) { try_on(trial, *rule, std::move(first), stop); });
}

void try_environment(const RewardTrial& trial, const generate::Environment& environment) {
  const std::unique_ptr<reward::Rule> rule = reward::make_reward(trial.reward, no_model);
  each_first(trial, data_for(*rule, trial.data, true), [&](const First& first) {
    const std::string where = "the environment, tried before the run with a made-up answer to " + first.where;
    generate::Budget budget{environment.options.timeout_s};
    const std::string& answer = first.prompt.answer;
    try {
      const auto episode = environment.make({first.prompt}, budget);
      (void)episode->next({answer.empty() ? kMadeUpAnswer : answer, {}, 0, false}, budget);
    } catch (const UserError& e) {
      throw e.seen_from(where, "nothing was made or changed: mend it and run the command again");
    } catch (const PeerError& e) {
      throw PeerError(where + ": " + e.what());
    }
  });
}

}  // namespace tandem::serve
