// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model or a data set that is named as on a hub, as a local path. docs/design/hub.md

#include <span>
#include <string>

#include "tandem/base/asset.h"
#include "tandem/base/error.h"
#include "tandem/hub/name.h"

namespace tandem::hub {

/// fetch.py, compiled in by cmake/embed.cmake.
std::span<const Asset> assets();

struct FetchOptions {
  double timeout_s = 3600;  ///< as the default of run.fetch_timeout_s
  StopRequested stop;       ///< may be empty
};

/// The path of what stands for a name: a folder, or of a data set one file. The path names repository and commit, so that it stands for
/// the same bytes always. A Python process fetches what is not here yet.
/// Blocking  until it is fetched, at most options.timeout_s.
/// Errors    UserError naming `where` if it cannot be had, with what to put where by hand; PeerError at the deadline; Interrupted.
std::string fetched(const Name& name, Kind kind, const std::string& where, const FetchOptions& options);

/// A local path as it is; a name on a hub as fetched() has it. Blocking and errors as fetched() and name_in().
std::string local_path(const std::string& text, Kind kind, const std::string& where, const FetchOptions& options = {});

}  // namespace tandem::hub
