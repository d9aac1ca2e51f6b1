// SPDX-License-Identifier: Apache-2.0
#pragma once
// `tandem run --fit`: probes a recipe's model with made-up rows and sets sizes of passes, running sequences and KV cache.

#include <string>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/config/config.h"
#include "tandem/config/layouts.h"
#include "tandem/model/config.h"
#include "tandem/model/products.h"

namespace tandem::fit {

/// What is probed.
struct Subject {
  std::string model_dir;
  model::ModelConfig model;
  model::Products products;   ///< known ones, of a warm start
};

struct Fitted {
  config::RunConfig config;
  model::Products products;   ///< that the probe measured, so that the run need not
};

/// Loads the model, trains and scores rows of the longest context, decodes some tokens, throws all away, and decides (choose.h). Rank 0
/// logs the table. The model on disk stays as it is, and nothing of the run is drawn or counted.
/// `given`: options that keep their values.
/// Blocking  collective over the world.
/// Errors    UserError where nothing fits, and for what it cannot probe: a reward model, a split placement.
Fitted fitted(const config::RunConfig& config, const Subject& subject, const std::vector<std::string>& given, comm::Group& world);

/// The recipe with what an earlier start of the run in `run_dir` decided, as a resume wants it; nothing changes where it left no recipe.
config::RunConfig as_before(config::RunConfig config, const std::string& run_dir, const std::vector<std::string>& given);

}  // namespace tandem::fit
