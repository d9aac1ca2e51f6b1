// SPDX-License-Identifier: Apache-2.0
#pragma once
// The critic of PPO, a trained role beside the actor: a model with a score head, whose score of the text before a token is what it expects
// of the rest.

#include "tandem/policy/trained_role.h"

namespace tandem::policy {

/// That of critic.path, or the actor's, with one label. Errors: UserError naming the option, for a model of several labels, of another
/// vocabulary or of a shorter context than the actor's, or that the layout of training cannot cut.
model::ModelConfig critic_config(const config::RunConfig& config, const model::Layout& layout, const model::ModelConfig& actor);

/// What makes it a trained role.
RoleSetup critic_setup(const config::RunConfig& config, const model::ModelConfig& critic);

}  // namespace tandem::policy
