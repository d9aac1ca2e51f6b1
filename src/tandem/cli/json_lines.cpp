// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/json_lines.h"

#include <istream>
#include <ostream>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/input/file_kind.h"
#include "tandem/base/strings.h"

namespace tandem::cli {

void each_object(std::istream& in, const std::string& name, const UseObject& use) {
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = name + ":" + std::to_string(number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const ExactJson parsed = parse_exact(line);
    const Object& object = parsed.value;
    if (!object.is_object()) {
      const std::string kind = number == 1 ? file_kind(line) : "";
      if (!kind.empty()) throw UserError(name, "is " + kind, "expected one JSON object per line, in UTF-8");
      throw UserError(where, "is not a JSON object" + (parsed.wrong.empty() ? "" : ": it " + parsed.wrong),
                      "expected one JSON object per line, of at most 500 levels; --help has the form");
    }
    try {
      use(object, where);
    } catch (const UserError& e) {
      const std::string message = e.what();
      if (message.starts_with(where)) throw;
      throw UserError(where, message, "the lines before it are answered");
    }
  }
}

void write_line(std::ostream& out, const Object& object) {
  out << terminal_text(object.dump(-1, ' ', false, Object::error_handler_t::replace)) << "\n" << std::flush;
  if (!out) throw PeerError("stdout: cannot be written");
}

const Object& field(const Object& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end())
    throw UserError(where, std::string("has no field `") + name + "`", std::string("expected {\"") + name + "\": ...}");
  return *found;
}

std::string text_field(const Object& object, const char* name, const std::string& where) {
  const Object& value = field(object, name, where);
  if (!value.is_string())
    throw UserError(where, std::string("field `") + name + "` is " + exact_text(value).substr(0, 40), "expected a text");
  return value.get<std::string>();
}

std::vector<int32_t> ids_field(const Object& object, const char* name, const std::string& where) {
  const Object& value = field(object, name, where);
  std::vector<int32_t> ids;
  if (!value.is_array()) throw UserError(where, std::string("field `") + name + "` is not a list", "expected a list of token ids");
  for (const Object& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw UserError(where, "id " + exact_text(id) + " is no token id", "expected non-negative integers");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace tandem::cli
