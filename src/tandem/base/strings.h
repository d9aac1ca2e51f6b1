// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small work on texts: cutting, replacing, sizes as people write them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

/// Without the white space of ASCII at both ends.
std::string trimmed(std::string_view text);
/// Every `from`, found from left to right, is `to`. An empty `from` is nowhere.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

/// Bytes of a text such as 5GB, 500 MB, 1.5GiB or 2000000: KB, MB, GB, TB count in thousands, KiB, MiB, GiB, TiB in 1024s.
/// nullopt for anything else, and for less than a byte.
std::optional<int64_t> parse_bytes(std::string_view text);
/// Such as 1.234 GB, 5.6 MB, 7.8 KB, 9 B; they count in thousands.
std::string bytes_text(int64_t bytes);

}  // namespace tandem
