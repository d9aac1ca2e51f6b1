// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model a run starts from: a given directory, or a small random one made for the recipe.

#include <string>

#include "tandem/config/config.h"

namespace tandem::policy {

/// Writes a random Hugging Face directory of the recipe's shape with a character tokenizer for additions.
/// Errors: UserError for sizes that do not fit each other; PeerError if it cannot be written.
void write_random_model(const std::string& dir, const config::ModelOptions& options, int64_t seed);

/// Whether that model can do for a recipe that names none. Errors: UserError naming --model if the first prompt of a data set has
/// characters that its tokenizer has not, or if a rule grades text.
void check_random_model(const config::RunConfig& config);

}  // namespace tandem::policy
