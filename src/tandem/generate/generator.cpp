// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/generator.h"

#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/data/schema.h"

namespace tandem::generate {
namespace {

constexpr double kMomentS = 0.01;  // for which nothing but an environment is waited for

int64_t most_tokens_of(const GenerateSetup& setup, data::SampleId sample) {
  return setup.most_tokens ? setup.most_tokens(sample) : setup.sampling.max_new_tokens;
}

constexpr const char* kFailedText = "failed";  // in place of turns

Turns::Setup turns_setup(const GenerateSetup& setup) {
  TANDEM_CHECK(setup.ends.tokenizer() != nullptr, "an environment without a tokenizer");
  return {setup.environment, *setup.ends.tokenizer(), setup.ends.num_ids(), setup.group_size, setup.seed,
          [&setup](std::span<const int32_t> ids) { return setup.ends.text_of(ids); },
          [&setup](data::SampleId sample) { return most_tokens_of(setup, sample); }};
}

// Nothing of it is trained on. It has the version of the token before.
void append_ids(data::Sample& sample, std::span<const int32_t> ids) {
  sample.trainable.resize(sample.ids.size(), 1);
  sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  sample.versions.resize(sample.ids.size(), sample.versions.back());
  data::each_list(sample, [&](const auto& column, auto& list) {
    const bool is_there = column.entries == data::Entries::kTokens || (column.entries == data::Entries::kTokensOrNone && !list.empty());
    if (is_there) list.resize(sample.ids.size());
  });
}

}  // namespace

Generator::Generator(GenerateSetup setup, rollout::Engine& engine, rollout::StreamPeers peers, std::optional<OwnThread> thread)
    : setup_(std::move(setup)), engine_(engine), peers_(std::move(peers)) {
  if (setup_.environment) turns_.emplace(turns_setup(setup_));
  if (thread) stream_.emplace(engine, std::move(thread->peers), std::move(thread->effects));
  else groups_.emplace(engine);
}

void Generator::admit(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun) {
  is_over_.erase(group);
  start(group, std::move(prompt), std::move(begun));
}

void Generator::start(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun) {
  rollout::GroupRequest request = setup_.request(group, std::move(prompt), std::move(begun));
  stream_ ? stream_->admit(std::move(request)) : groups_->admit(std::move(request));
}

void Generator::cancel(data::GroupId group) {
  is_over_.erase(group);
  if (turns_) turns_->forget(group);
  if (out_.erase(group) > 0) return;
  stream_ ? stream_->cancel(group) : groups_->cancel(group);
}

bool Generator::step() {
  TANDEM_CHECK(!stream_, "a thread draws the tokens");
  if (!engine_.must_step()) return false;
  engine_.step();
  return true;
}

std::vector<data::Group> Generator::take_ended(int64_t most, comm::Group* peers) {
  std::vector<data::Group> ended = stream_ ? stream_->take_finished(most) : groups_->finished();
  if (!setup_.has_episodes) {
    for (data::Group& group : ended) setup_.ends.fill_text(group);
    return ended;
  }
  for (data::Group& group : ended) {
    std::vector<bool>& is_over = is_over_[group.id];
    is_over.resize(group.samples.size(), false);
    if (turns_) turns_->submit(group, is_over);
    out_.emplace(group.id, std::move(group));
  }
  return stream_ || !out_.empty() ? hear_turns(peers) : std::vector<data::Group>();
}

// Those of other replicas speak of groups that are not here.
std::vector<data::Group> Generator::hear_turns(comm::Group* peers) {
  std::string said;
  if (fault()) said = kFailedText;
  else if (turns_ && !out_.empty()) said = to_text(turns_->collect(Deadline::after_s(stream_ || engine_.running() ? 0 : kMomentS)));
  std::vector<std::string> all = {std::move(said)};
  const auto tell = [&](comm::Group& group) {
    std::string mine = all.front();  // of one rank of those that draw together
    for (const std::string& each : all)
      if (mine.empty()) mine = each;
    all = comm::texts_of_all(group, mine);
  };
  if (peers) tell(*peers);
  else for (comm::Group* group : peers_.alike) tell(*group);
  std::vector<data::Group> done;
  for (const std::string& text : all) {
    has_failed_ |= text == kFailedText;
    if (text == kFailedText) continue;
    for (const GroupTurn& turn : turns_of(text)) {
      auto held = out_.extract(turn.group);
      if (held.empty()) continue;
      data::Group& group = held.mapped();
      if (!apply(turn, group, is_over_.at(group.id))) {
        start(group.id, std::move(group.prompt), std::move(group.samples));
        continue;
      }
      is_over_.erase(group.id);
      setup_.ends.fill_text(group);
      done.push_back(std::move(group));
    }
  }
  return done;
}

Generator::Goes Generator::goes_on() const {
  const Goes mine = has_failed_ ? Goes::kFailed : engine_.running() || awaits_turns() ? Goes::kOn : Goes::kOver;
  if (!peers_.experts || !setup_.has_episodes) return mine;
  return static_cast<Goes>(comm::max_over(*peers_.experts, static_cast<int64_t>(mine)));
}

// Whoever goes on with them says again what was said.
std::vector<data::Group> Generator::take_out(const std::vector<data::GroupId>& groups) {
  for (const data::GroupId group : groups) {
    is_over_.erase(group);
    if (turns_) turns_->forget(group);
  }
  return stream_->take_out(groups);
}

// Whether all of the group is over.
bool Generator::apply(const GroupTurn& turn, data::Group& group, std::vector<bool>& is_over) const {
  bool is_done = true, has_reward = false;
  for (size_t i = 0; i < group.samples.size(); ++i) {
    if (is_over[i]) continue;
    data::Sample& sample = group.samples[i];
    const SampleTurn& said = turn.samples.at(i);
    if (said.kind == SampleTurn::Kind::kDone) {
      is_over[i] = true;
      sample.trainable.resize(sample.ids.size(), 1);
      if (said.is_full) sample.finish = data::FinishReason::kLength;
      sample.scored = said.reward.has_value(), sample.score = said.reward.value_or(0);
      sample.parts = {{"turns", static_cast<double>(said.turns)}, {"failed_episodes", static_cast<double>(said.failures)}};
      continue;
    }
    is_done = false;
    if (said.kind == SampleTurn::Kind::kGoesOn) append_ids(sample, said.ids);
    else sample = data::Sample{.id = sample.id};
    sample.finish = data::FinishReason::kAborted;
  }
  // One that found no room for more, where others got a reward, has got none.
  for (const data::Sample& sample : group.samples) has_reward |= sample.scored;
  for (data::Sample& sample : group.samples) sample.scored |= is_done && has_reward && sample.finish == data::FinishReason::kLength;
  return is_done;
}

bool Generator::running() const {
  if (!out_.empty()) return true;
  if (!stream_) return engine_.running();
  const rollout::StreamState state = stream_->state();
  return state.is_busy && !state.awaits;
}

rollout::EngineCounts Generator::counts() const { return stream_ ? stream_->state().counts : engine_.counts(); }

std::vector<data::Waiting> Generator::waiting(data::PolicyVersion after) const {
  std::vector<data::Waiting> all;
  if (groups_) {
    for (const data::GroupId id : groups_->without_token()) all.push_back({id, after});
    return all;
  }
  const rollout::StreamState state = stream_->state();
  for (const data::GroupId id : state.without_token) all.push_back({id, state.version.value()});  // it may draw it before it switches
  return all;
}

}  // namespace tandem::generate
