// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of a JSON file that knows where it stands, so that errors can say so.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::text {

/// Ownership  a view; the JSON and its copies of `where` must outlive it.
/// Errors     UserError naming `FILE: path.to[0].part`.
class JsonPart {
 public:
  JsonPart(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_none() const { return value_->is_null(); }

  /// A member; null if there is none. Errors: if this is no object.
  JsonPart operator[](const std::string& key) const;
  /// Errors: if this is no array.
  std::vector<JsonPart> items() const;
  std::string text() const;
  std::string text_or(const std::string& otherwise) const { return is_none() ? otherwise : text(); }
  bool flag_or(bool otherwise) const;
  /// An integer from 0 to `most`.
  int32_t number(int32_t most) const;

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const;
  /// Refuses what this is: a scalar is shown, anything else named by its type.
  [[noreturn]] void unsupported(const std::string& remedy) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace tandem::text
