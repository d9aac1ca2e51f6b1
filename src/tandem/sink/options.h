// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the numbers of a run go besides its folder: the section `monitor` of a recipe.

#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::sink {

/// Each text that is empty leaves the choice to the sink's own environment variable, then to what its help says.
struct Options {
  std::vector<std::string> sinks;   ///< of wandb, swanlab, mlflow
  std::string project;
  std::string run_name;
  std::string group;
  std::string mlflow_tracking_uri;
  std::string python_executable;
  double end_wait_s = 30;
};
void describe(OptionVisitor& field, Options& o);

}  // namespace tandem::sink
