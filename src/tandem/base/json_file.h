// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small files read and written whole, with errors that name them.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem {

/// The bytes of a file. Errors: UserError naming the path if it is missing or unreadable.
std::string read_file(const std::string& path);
/// A file of others. Errors: as read_file, and UserError if it is not a JSON object, or nests deeper than kMaxJsonDepth.
nlohmann::json read_json_object(const std::string& path);
/// Refuses a file of ours unless the number of its format is 1 to `newest`. Null stands for a file without a number: older programs
/// wrote none, and this one reads them. Errors: UserError naming the file, its number, and those that this program reads.
void check_format(const nlohmann::json& number, const std::string& path, int64_t newest);
/// Errors: PeerError naming the path if it cannot be written.
void write_file(const std::string& path, const std::string& bytes);

}  // namespace tandem
