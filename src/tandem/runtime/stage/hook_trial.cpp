// SPDX-License-Identifier: Apache-2.0
// A made-up batch for functions of the host.
#include "tandem/runtime/stage/stages.h"

#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/config/algorithm.h"

namespace tandem::runtime {
namespace {

// One of `hooks`, with what it throws told as what it is.
template <class Call>
void tried(const char* what, const Call& call) {
  const std::string where = join_text("tried before the run with a made-up ", what);
  try {
    call();
  } catch (const NotFiniteGiven& e) {  // made-up numbers may be the cause
    log::warning(e.seen_from(where).what());
  } catch (const UserError& e) {
    throw e.seen_from(where, "nothing was made or changed: the same command tries again");
  }
}

int64_t tokens_of(int64_t row) { return 2 + row % 3; }

train::LossColumns made_up_columns(const config::RunConfig& config, const algo::Algorithm& algorithm) {
  const queue::Options& queue = config.schedule.queue;
  const int64_t rows = std::max<int64_t>(1, queue.groups_per_step * queue.group_size / algorithm.updates.mini_batches);
  std::vector<int64_t> offsets;
  std::vector<float> logprobs, advantages;
  for (int64_t row = 0; row < rows; ++row) {
    offsets.push_back(std::ssize(logprobs));
    for (int64_t t = 0; t < tokens_of(row); ++t) {
      logprobs.push_back(-0.25f * static_cast<float>(1 + (row + t) % 7));
      advantages.push_back(row % 2 == 0 ? 1.0f : -1.0f);
    }
  }
  const at::Tensor logprobs_T = at::tensor(logprobs);
  train::LossColumns columns{{.logprobs_T = logprobs_T,
                              .old_T = logprobs_T.clone(),
                              .behavior_T = logprobs_T.clone(),
                              .correction_T = at::ones_like(logprobs_T),
                              .advantages_T = at::tensor(advantages),
                              .trainable_T = at::ones_like(logprobs_T, at::kBool),
                              .offsets_S = at::tensor(offsets),
                              .global_tokens = static_cast<double>(std::ssize(logprobs)),
                              .global_sequences = static_cast<double>(rows)},
                             at::full_like(logprobs_T, 1.5),
                             {}};
  if (algorithm.needs_reference()) columns.reference_R = logprobs_T - 0.125;
  return columns;
}

void try_advantage(const Hooks& hooks, const config::RunConfig& config) {
  const queue::Options& queue = config.schedule.queue;
  std::vector<double> scores;
  std::vector<int64_t> groups, lengths;
  for (int64_t i = 0; i < queue.groups_per_step * queue.group_size; ++i) {
    scores.push_back(static_cast<double>(i % 2));
    groups.push_back(i / queue.group_size);
    lengths.push_back(tokens_of(i));
  }
  (void)hooks.advantage({scores, groups, lengths, {}});
}

}  // namespace

void try_hooks(const Hooks& hooks, const config::RunConfig& config) {
  if (hooks.advantage) tried("batch", [&] { try_advantage(hooks, config); });
  if (hooks.loss) tried("mini-batch", [&] { (void)hooks.loss(made_up_columns(config, config::algorithm_of(config))); });
}

}  // namespace tandem::runtime
