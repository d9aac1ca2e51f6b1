// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/generator.h"

#include <utility>

#include "tandem/base/check.h"

namespace tandem::generate {

Generator::Generator(GenerateSetup setup, rollout::Engine& engine, std::optional<OwnThread> thread)
    : setup_(std::move(setup)), engine_(engine) {
  if (thread) stream_.emplace(engine, std::move(thread->peers), std::move(thread->effects));
  else groups_.emplace(engine);
}

void Generator::admit(data::GroupId group, data::Prompt prompt, std::vector<data::Sample> begun) {
  rollout::GroupRequest request = setup_.request(group, std::move(prompt), std::move(begun));
  stream_ ? stream_->admit(std::move(request)) : groups_->admit(std::move(request));
}

void Generator::cancel(data::GroupId group) { stream_ ? stream_->cancel(group) : groups_->cancel(group); }

bool Generator::step() {
  TANDEM_CHECK(!stream_, "a thread draws the tokens");
  if (!engine_.must_step()) return false;
  engine_.step();
  return true;
}

std::vector<data::Group> Generator::take_ended(int64_t most) {
  std::vector<data::Group> ended = stream_ ? stream_->take_finished(most) : groups_->finished();
  for (data::Group& group : ended) setup_.ends.fill_text(group);
  return ended;
}

bool Generator::running() const {
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
