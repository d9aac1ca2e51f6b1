// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/json_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"

namespace tandem {

std::string read_file(const std::string& path) {
  std::error_code ignored;
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path, ignored))
    throw UserError(path, std::string("cannot be read: ") + std::strerror(errno ? errno : EISDIR), "expected an existing, readable file");
  std::string bytes;
  std::vector<char> buffer(size_t{1} << 16);
  do {
    in.read(buffer.data(), std::ssize(buffer));
    bytes.append(buffer.data(), static_cast<size_t>(in.gcount()));
  } while (in);
  if (in.bad()) throw UserError(path, std::string("cannot be read to its end: ") + std::strerror(errno), "expected an intact file");
  return bytes;
}

nlohmann::json read_json_object(const std::string& path) {
  const std::string bytes = read_file(path);
  if (nests_too_deep(bytes))
    throw UserError(path, "nests deeper than " + std::to_string(kMaxJsonDepth) + " levels", "expected an intact file");
  try {
    nlohmann::json json = nlohmann::json::parse(bytes);
    if (!json.is_object()) throw UserError(path, "holds no JSON object", "expected { ... }");
    return json;
  } catch (const nlohmann::json::exception& e) {
    throw UserError(path, std::string("is not JSON: ") + e.what(), "expected a JSON object");
  }
}

void check_format(const nlohmann::json& number, const std::string& path, int64_t newest) {
  if (number.is_null() || (number.is_number_integer() && number >= 1 && number <= newest)) return;
  const std::string known = newest == 1 ? "1" : "1 to " + std::to_string(newest);
  throw UserError(path, "has format " + (number.is_discarded() ? "that is no number" : number.dump()),
                  "this program reads " + known + ", and files without a number; a newer program reads it");
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  if (!out) throw PeerError(path + ": cannot be written: " + std::strerror(errno));
}

}  // namespace tandem
