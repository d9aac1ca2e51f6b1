// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small work on texts: cutting, replacing, sizes as people write them, what a terminal may have.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// Without the white space of ASCII at both ends.
std::string trimmed(std::string_view text);
/// What stands between the places of `separator`: one more than there are of these, some of them perhaps empty.
std::vector<std::string_view> split(std::string_view text, char separator);
/// One after the other, with `between` between two of them.
std::string joined(std::span<const std::string> texts, std::string_view between);
/// The letters of ASCII in lower case.
std::string lower_ascii(std::string_view text);
/// Every `from`, found from left to right, is `to`. An empty `from` is nowhere.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

/// Bytes of a text such as 5GB, 500 MB, 1.5GiB or 2000000: KB, MB, GB, TB count in thousands, KiB, MiB, GiB, TiB in 1024s.
/// nullopt for anything else, and for less than a byte.
std::optional<int64_t> parse_bytes(std::string_view text);
/// Such as 1.234 GB, 5.6 MB, 7.8 KB, 9 B; they count in thousands.
std::string bytes_text(int64_t bytes);

/// A text of others as a terminal may have it, which obeys some characters instead of showing them. Line breaks and tabs stay. Other
/// control characters, and marks that turn the direction of writing, are written as JSON would: \u001b, \u202e. Bytes that are no
/// UTF-8 become \ufffd. Of a JSON document, the result is the same document.
std::string terminal_text(std::string_view text);

}  // namespace tandem
