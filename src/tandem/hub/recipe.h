// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a recipe may name what is on a hub.

#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/hub/fetch.h"

namespace tandem::hub {

/// An option of a recipe, or one entry of it, that holds a path or a name.
struct Place {
  std::string option;  ///< data.eval
  Kind kind;
  std::string text;
};

/// Those of models, then of data sets.
std::vector<Place> places_of(const config::RunConfig& config);
/// The recipe with other texts in its places, in their order.
config::RunConfig with_texts(config::RunConfig config, const std::vector<std::string>& texts);

/// The texts of all places as local paths. A path of `earlier`, the recipe of a run that goes on, serves again where it was fetched for
/// that name, so that the run has the same bytes and needs no network.
/// Blocking and errors as fetch.h:fetched, naming the option.
std::vector<std::string> local_paths(const config::RunConfig& config, const std::vector<Place>& earlier, const FetchOptions& options);

/// Places of the recipe in a run folder; none where there is no recipe yet.
std::vector<Place> places_of_run(const std::string& run_dir);

}  // namespace tandem::hub
