// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

/// Bytes of a text such as 5GB, 500 MB, 1.5GiB or 2000000: KB, MB, GB, TB count in thousands, KiB, MiB, GiB, TiB in 1024s.
/// nullopt for anything else, and for less than a byte.
std::optional<int64_t> parse_bytes(std::string_view text);

}  // namespace tandem
