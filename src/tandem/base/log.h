// SPDX-License-Identifier: Apache-2.0
#pragma once
// A line of text for a person, on standard error and, once a run folder exists, in its log.txt. And the last line of a terminal, which is
// written over and over: other lines go above it, and a log.txt never has it.

#include <string>

#include "tandem/base/check.h"

namespace tandem::log {

/// Errors: UserError if the file cannot be opened for appending. Threads: any.
void also_to_file(const std::string& path);
void stop_file();
void quiet(bool on);  ///< keeps info() off standard error (the file still gets it)

/// Whether live() shows anything. The command line says so where standard error is a terminal that can go back in its line; off until then.
void show_live(bool on);
bool shows_live();
/// Takes the place of the line shown before, cut to the terminal's width; "" takes that away. Threads: any.
void live(const std::string& text) noexcept;

void write(const char* level, const std::string& text) noexcept;
/// A warning that many may have to give: what the process has said before is not said again.
void warning_once(const std::string& text);

template <class... Parts>
void info(const Parts&... parts) { write("info", join_text(parts...)); }
template <class... Parts>
void warning(const Parts&... parts) { write("warning", join_text(parts...)); }

}  // namespace tandem::log
