// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/critic.h"

#include "tandem/base/error.h"

namespace tandem::policy {

model::ModelConfig critic_config(const config::RunConfig& config, const model::Layout& layout, const model::ModelConfig& actor) {
  const std::string& path = config.critic.path;
  model::ModelConfig critic = path.empty() ? actor : model::read_config(path, model::ModelUse::kEither);
  if (critic.num_labels > 1)
    throw UserError("critic.path", join_text(path, " has ", critic.num_labels, " labels"),
                    "a reward model of one label, or a language model");
  if (critic.vocab_size != actor.vocab_size)
    throw UserError("critic.path", join_text(path, " has ", critic.vocab_size, " tokens, and the actor ", actor.vocab_size),
                    "a model with the actor's tokenizer");
  if (critic.max_positions < actor.max_positions)
    throw UserError("critic.path", join_text(path, " reads ", critic.max_positions, " tokens, and the actor ", actor.max_positions),
                    "a context at least as long");
  critic.num_labels = 1;
  const std::string what = path.empty() ? "the critic" : "critic.path " + path;
  model::check_layout(layout, critic, model::Use::kTraining, what + " under parallel.train_layout");
  train::check_options(config.critic.train, critic, {}, "critic");
  return critic;
}

RoleSetup critic_setup(const config::RunConfig& config, const model::ModelConfig& critic) {
  return {.name = "critic",
          .folder = "critic",
          .section = "critic",
          .config = critic,
          .options = config.critic.train,
          .lora = {},
          .weights = planner::Resident::kCriticWeights,
          .gradients = planner::Resident::kCriticGradients,
          .optimizer = planner::Resident::kCriticOptimizer};
}

}  // namespace tandem::policy
