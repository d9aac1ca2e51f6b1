// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small files of a Hugging Face directory, read whole.

#include <nlohmann/json.hpp>
#include <string>

namespace tandem::text {

/// Errors: UserError naming the path if it is missing or unreadable.
std::string read_file(const std::string& path);
/// Errors: as read_file, and UserError if it is not a JSON object.
nlohmann::json read_json_object(const std::string& path);
/// Errors: PeerError naming the path if it cannot be written.
void write_file(const std::string& path, const std::string& bytes);

}  // namespace tandem::text
