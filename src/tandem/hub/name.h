// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of models and data sets on a hub, as options have them.

#include <optional>
#include <string>

namespace tandem::hub {

enum class Kind { kModel, kTrainData, kHeldOutData };

enum class Host { kHuggingFace, kModelScope };

/// [hf:|modelscope:]OWNER/NAME[/PATH][@REVISION]; PATH is a folder or a file of a data set.
struct Name {
  Host host = Host::kHuggingFace;
  std::string repository;  ///< OWNER/NAME
  std::string path;        ///< in the repository; "" for all of it
  std::string revision;    ///< "": the newest
};

/// What an option means by `text`; nullopt for a local path, for one bare word and for "". What exists here is a path. So is, without a
/// prefix, what begins with a folder that exists or ends as a data file does. A path below `snapshots`, as fetched() gives them, that is
/// not here is the name it was fetched for. Errors: UserError naming `where` for a prefix without OWNER/NAME behind it.
std::optional<Name> name_in(const std::string& text, Kind kind, const std::string& where);

/// The name and revision that a fetched path stands for; nullopt if it stands for none.
std::optional<Name> name_of_fetched(const std::string& path);

/// Whether `fetched` can stand for `asked`: the same repository, below its path, of its revision if that is a commit.
bool stands_for(const Name& fetched, const Name& asked);

/// As an option would have it.
std::string to_text(const Name& name);

}  // namespace tandem::hub
