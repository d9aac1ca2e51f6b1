// SPDX-License-Identifier: Apache-2.0
#pragma once
// A line of text for a person, on standard error and, once a run folder exists, in its log.txt.

#include <string>

#include "tandem/base/check.h"

namespace tandem::log {

/// Errors: UserError if the file cannot be opened for appending. Threads: any.
void also_to_file(const std::string& path);
void stop_file();
void quiet(bool on);  ///< keeps info() off standard error (the file still gets it)

void write(const char* level, const std::string& text) noexcept;

template <class... Parts>
void info(const Parts&... parts) { write("info", join_text(parts...)); }
template <class... Parts>
void warning(const Parts&... parts) { write("warning", join_text(parts...)); }

}  // namespace tandem::log
