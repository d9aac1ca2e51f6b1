// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two kinds of JSON value that sinks write by hand, so that numbers come back bit for bit.

#include <string>
#include <string_view>

namespace tandem::monitor {

/// Shortest decimal that reads back as the same double; `null` for NaN and infinities, which JSON has no word for.
void append_json_number(std::string& out, double value);
/// A quoted string; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

}  // namespace tandem::monitor
