// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/rollout_role.h"

#include "tandem/base/check.h"
#include "tandem/runtime/exchange.h"
#include "tandem/runtime/session/response_text.h"

namespace tandem::runtime {
namespace {

constexpr double kScoringDeadlineS = 600;
}  // namespace

RolloutRole::RolloutRole(RankContext& context, const RolloutParts& parts)
    : context_(context),
      parts_(parts),
      engine_(context.config.rollout.engine, {parts.decoder, context.device, context.recorder,
                                              std::min(parts.tokenizer.vocab_size(), parts.decoder.config().vocab_size),
                                              parts.prompts.longest_prompt() + context.config.rollout.sampling.max_new_tokens}),
      scorer_(parts.reward, context.config.reward.workers),
      stop_ids_(stop_ids(parts.decoder.config().eos_ids, &parts.tokenizer)),
      stop_matchers_(stop_matchers(&parts.tokenizer, context.config.rollout.stop)) {}

void RolloutRole::start(data::GroupId id) {
  parts_.queue.start(id, parts_.queue.version());
  // Groups go round the data-parallel replicas; every rank's queue knows of all.
  if (value(id) % context_.rollout_layout.dp != context_.rollout_layout.dp_rank(context_.world.rank())) return;
  const int64_t group_size = context_.config.schedule.queue.group_size;
  rollout::Request request;
  request.group.id = id;
  request.group.prompt = parts_.prompts.at_position(value(id));
  request.num_samples = group_size;
  request.first_sample = value(data::sample_id(id, group_size, 0));
  request.sampling = context_.config.rollout.sampling;
  request.seed = static_cast<uint64_t>(context_.config.run.seed);
  request.stop_ids = stop_ids_;
  request.make_stop_matcher = stop_matchers_;
  engine_.admit(std::move(request));
}

void RolloutRole::start_groups() {
  for (int64_t n = parts_.queue.num_may_start(); n > 0; --n) {
    if (!again_.empty()) {
      start(again_.front());
      again_.erase(again_.begin());
    } else {
      start(data::GroupId{next_group_++});
    }
  }
}

// Some token steps, then what they finished goes to all ranks. Under staleness 0 a batch needs every running group, so the
// round lasts until the engine is idle.
void RolloutRole::run_round() {
  const int64_t most = context_.config.staleness() == 0 ? INT64_MAX : context_.config.parallel.exchange_steps;
  for (int64_t i = 0; i < most && engine_.running(); ++i) {
    if (context_.stop_requested && context_.stop_requested()) break;
    engine_.step();
    for (data::Group& group : engine_.finished()) {
      for (const data::Sample& sample : group.samples) num_tokens_ += static_cast<int64_t>(sample.ids.size());
      fill_text(group, parts_.tokenizer, context_.config.rollout.stop);
      scorer_.submit(std::move(group));  // its threads score it while the engine goes on
    }
  }
  const double begin = now_s();
  std::vector<data::Group> scored = scorer_.drain(Deadline::after_s(kScoringDeadlineS));
  context_.recorder.add("time/reward_s", now_s() - begin);
  for (const data::Group& group : exchange_groups(context_.world, std::move(scored), context_.speaks_for_rollout())) parts_.queue.put(group);
}

bool RolloutRole::run_until_batch() {
  // Restored groups are outstanding from the start: finished ones may form a batch at once, and a checkpoint after it must
  // know the others, too.
  if (!again_.empty()) start_groups();
  while (!parts_.queue.batch_ready()) {
    if (context_.stop_agreed()) return false;
    start_groups();
    // Under `wait` a full batch may be held back for a straggler: that is the price of the policy, and it is reported.
    const bool held_back = !parts_.queue.must_wait_for().empty();
    const double begin = now_s();
    run_round();
    if (held_back) context_.recorder.add("time/wait_s", now_s() - begin);
  }
  return true;
}

void RolloutRole::switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version) {
  engine_.switch_weights(parameters, version);
}

void RolloutRole::cancel(const std::vector<data::GroupId>& groups) {
  for (data::GroupId id : groups) engine_.cancel(id);
}

void RolloutRole::restore(int64_t next_group, std::vector<data::GroupId> again) {
  next_group_ = next_group;
  again_ = std::move(again);
}

}  // namespace tandem::runtime
