// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/generation.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/comm/agree.h"
#include "tandem/generate/setup.h"

namespace tandem::runtime {
namespace {

constexpr double kStreamMomentS = 0.01;  // for which advance() waits for a stream to end a group

}  // namespace

Generation::Generation(const config::RunConfig& config, const policy::Ranks& ranks, const std::optional<rollout::EngineSetup>& engine,
                       const generate::GenerateSetup& setup, std::optional<std::vector<data::Effect>> effects)
    : ranks_(ranks), is_free_(config.is_free()), has_episodes_(setup.has_episodes) {
  if (!engine) return;
  engine_.emplace(config.rollout.engine, *engine);
  std::optional<generate::OwnThread> thread;
  rollout::StreamPeers peers = generate::peers_of(ranks.rollout_place(), config.parallel.deadline_s);
  if (is_free_) thread = {peers, std::move(effects)};
  generator_.emplace(setup, *engine_, std::move(peers), std::move(thread));
  stream_ = generator_->stream();
  if (stream_ && ranks.trains()) set(false, false, false);
}

// On all ranks of this one's replica. A head is sent for all of them, and any of them may be asked for the body.
int64_t Generation::num_ended_on_all(comm::Group& peers) const {
  const int64_t mine = stream_ ? stream_->state().num_ended : 0;
  const model::Layout& layout = ranks_.rollout_layout;
  if (layout.dp == layout.world()) return mine;
  const int64_t replica = stream_ ? layout.dp_rank(ranks_.rollout_rank()) : -1;
  const std::vector<int64_t> all = comm::values_of_all(peers, std::vector<int64_t>{replica, mine});
  int64_t least = mine;
  for (size_t i = 0; i < all.size(); i += 2)
    if (all[i] == replica) least = std::min(least, all[i + 1]);
  return least;
}

void Generation::collect(comm::Group& peers, const Ended& ended) {
  const int64_t ended_on_all = num_ended_on_all(peers);
  if (stream_) ended(generator_->take_ended(ended_on_all, &peers));
  else if (has_episodes_) (void)comm::texts_of_all(peers, "");  // others hear of their environments
}

void Generation::advance(int64_t steps, comm::Group& peers, const StopRequested& stop, const Ended& ended) {
  advanced_ = false;
  if (is_free_) {
    const Deadline moment = Deadline::after_s(kStreamMomentS);
    // Where nothing runs, not to ask the peers all the time.
    if (stream_ && !stream_->wait_finished(moment)) std::this_thread::sleep_until(moment.time());
    collect(peers, ended);
    advanced_ = stream_ && stream_->state().is_busy;
    return;
  }
  for (int64_t i = 0; i < steps && engine_; ++i) {
    if (stop && stop()) break;
    advanced_ = generator_->step();
    if (advanced_ || generator_->awaits_turns()) ended(generator_->take_ended());
    if (!advanced_) break;
  }
}

// A stream goes on with the weights it has until all of the new ones are here.
void Generation::switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) {
  if (!is_free_) return rollout::switch_weights(engine(), ranks_.world, send, version);
  if (stream_) stream_->wait_switched();
  const model::ModelParameters* parameters = send();
  ranks_.world.barrier();
  if (stream_) stream_->switch_weights(*parameters, version);
}

void Generation::set(bool is_open, bool is_paused, bool is_repeated) {
  const bool ran = is_open_ && !is_paused_, runs = is_open && !is_paused;
  is_open_ = is_open, is_paused_ = is_paused;
  if (!stream_ || ran == runs) return;
  runs ? stream_->resume() : stream_->pause(is_repeated ? std::optional(data::Effect::Kind::kStand) : std::nullopt);
}

void Generation::open() {
  if (!stream_ || !ranks_.trains()) return;
  turns_.open(now_s());
  drawn_at_open_ = counts().drawn;
  set(true, is_paused_, true);
}

void Generation::close() {
  if (!stream_ || !ranks_.trains()) return;
  set(false, is_paused_, true);
  turns_.close(now_s(), counts().drawn - drawn_at_open_);
}

std::vector<data::GroupId> Generation::better_moved() const {
  std::vector<data::GroupId> better;
  if (!stream_ || !ranks_.trains()) return better;
  for (const auto& [id, tokens] : stream_->state().unfinished_tokens)
    if (turns_.is_better_moved(tokens)) better.push_back(id);
  return better;
}

std::vector<data::Group> Generation::take_out(const std::vector<data::GroupId>& groups) {
  return stream_ && !groups.empty() ? generator_->take_out(groups) : std::vector<data::Group>();
}

std::optional<double> Generation::idle_s() const {
  return stream_ ? std::optional(stream_->state().idle_s) : std::nullopt;
}

std::vector<data::Effect> Generation::take_effects() {
  return stream_ ? stream_->take_effects() : std::vector<data::Effect>();
}

}  // namespace tandem::runtime
