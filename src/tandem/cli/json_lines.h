// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON Lines as the commands read and write them: one object a line, errors that name the line.

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::cli {

using Object = nlohmann::ordered_json;  // templates print keys in the order they came in
using UseObject = std::function<void(const Object& object, const std::string& where)>;

/// Calls `use` with each object, its keys in their order, and its place, "NAME:LINE"; blank lines are passed over.
/// Errors: UserError naming the line, also where `use` throws one that does not.
void each_object(std::istream& in, const std::string& name, const UseObject& use);
/// Writes one line and flushes. Errors: PeerError if it cannot be written.
void write_line(std::ostream& out, const Object& object);

/// Fields of an object. Errors: UserError naming `where`, the field and what it should be.
const Object& field(const Object& object, const char* name, const std::string& where);
std::string text_field(const Object& object, const char* name, const std::string& where);
std::vector<int32_t> ids_field(const Object& object, const char* name, const std::string& where);

}  // namespace tandem::cli
