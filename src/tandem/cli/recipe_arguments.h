// SPDX-License-Identifier: Apache-2.0
#pragma once
// A recipe on the command line: the file, --set, and the short forms of the options everybody turns.

#include <string>
#include <vector>

#include "tandem/config/config.h"

namespace CLI {
class App;
}

namespace tandem::cli {

/// The values of --set. Errors: UserError for one that names no option and value.
std::vector<config::Setting> settings_of(const std::vector<std::string>& texts);

/// Ownership  the parser writes into it; it outlives the parse.
class RecipeArguments {
 public:
  enum Presence { kRequired, kOptional };
  /// Supervised runs have no schedule, rollout or evaluation, and --steps counts supervised ones. Where a recipe is printed, --schedule
  /// asks for that; --staleness and --set choose one.
  enum Kind { kReinforced, kSupervised, kPrinted };
  explicit RecipeArguments(Presence presence, Kind kind = kReinforced);

  void declare(CLI::App& app);
  const std::string& path() const { return path_; }
  /// As they stand on the command line, so that of two which set one option the later wins. `--staleness S` alone means the stale
  /// schedule, `--schedule sync` alone staleness 0.
  std::vector<config::Setting> settings() const;
  /// Errors: as config::load_config.
  config::RunConfig load() const { return config::load_config(path_, settings()); }

 private:
  void declare_short_forms(CLI::App& app);
  void note(const char* flag, std::vector<config::Setting> settings);

  Presence presence_;
  Kind kind_;
  std::string path_;
  std::vector<config::Setting> given_;  ///< in their order; of each short form its last use; of --set the text, without a name yet
};

}  // namespace tandem::cli
