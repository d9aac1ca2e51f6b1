// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/json_part.h"

#include "tandem/base/error.h"

namespace tandem::text {
namespace {

const nlohmann::json kNone;

// The error must not grow with the file, nor depend on how deep it is.
std::string shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  const std::string text = value.dump();
  return text.size() <= 80 ? text : "a text of " + std::to_string(text.size()) + " bytes";
}

}  // namespace

JsonPart JsonPart::operator[](const std::string& key) const {
  if (!value_->is_object()) refuse("is " + shown(*value_), "expected an object with `" + key + "`");
  const auto found = value_->find(key);
  return {found == value_->end() ? kNone : *found, where_ + (where_.ends_with(':') ? " " : ".") + key};
}

std::vector<JsonPart> JsonPart::items() const {
  if (!value_->is_array()) refuse("is " + shown(*value_), "expected an array");
  std::vector<JsonPart> parts;
  for (const nlohmann::json& item : *value_) parts.emplace_back(item, where_ + "[" + std::to_string(parts.size()) + "]");
  return parts;
}

std::string JsonPart::text() const {
  if (!value_->is_string()) refuse("is " + shown(*value_), "expected a text");
  return value_->get<std::string>();
}

bool JsonPart::flag_or(bool otherwise) const {
  if (is_none()) return otherwise;
  if (!value_->is_boolean()) refuse("is " + shown(*value_), "expected true or false");
  return value_->get<bool>();
}

int32_t JsonPart::number(int32_t most) const {
  if (!value_->is_number_integer() || *value_ < 0 || *value_ > most)
    refuse("is " + shown(*value_), "expected an integer from 0 to " + std::to_string(most));
  return value_->get<int32_t>();
}

void JsonPart::refuse(const std::string& what, const std::string& remedy) const { throw UserError(where_, what, remedy); }

void JsonPart::unsupported(const std::string& remedy) const { refuse(shown(*value_) + " is not supported", remedy); }

}  // namespace tandem::text
