// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/json_schema.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/options.h"
#include "tandem/base/json_file.h"
#include "tandem/text/regex.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {

using nlohmann::json;

namespace {

constexpr int64_t kMostSchemaBytes = int64_t{1} << 24;

constexpr const char* kWhere = "reward.schema";

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  throw UserError(kWhere, "there is no type `" + type + "`", "object, array, string, number, integer, boolean or null");
}

}  // namespace

struct JsonSchema::Node {
  explicit Node(const json& schema) {
    if (schema.is_boolean()) {
      refuses_all = !schema.get<bool>();
      return;
    }
    if (!schema.is_object()) throw UserError(kWhere, schema.dump().substr(0, 60) + " is no schema", "expected an object");
    static const std::vector<std::string> kKeywords = {
          "type",      "enum",      "const",   "properties", "required", "additionalProperties", "items",
          "minItems",  "maxItems",  "minLength", "maxLength", "pattern",  "minimum",              "maximum",
          "title",     "description", "default", "examples", "$schema",  "$id",                  "$comment"};
    for (const auto& [name, value] : schema.items())
      if (std::ranges::find(kKeywords, name) == kKeywords.end())
        throw UserError(kWhere, "the keyword `" + name + "` is not known", "the nearest is `" + nearest_name(name, kKeywords) + "`");
    rules = schema;
    if (rules.contains("type")) has_any_type(json());  // names the wrong ones now
    if (rules.contains("pattern")) pattern.emplace(rules["pattern"].get<std::string>(), kWhere);
    within(0, "minimum", "maximum");  // and the ones that are no numbers
    within(0, "minLength", "maxLength");
    within(0, "minItems", "maxItems");
    if (rules.contains("required")) required = rules["required"].get<std::vector<std::string>>();
    if (rules.contains("properties"))
      for (const auto& [name, one] : rules["properties"].items()) properties.emplace(name, std::make_unique<Node>(one));
    if (rules.contains("items")) items = std::make_unique<Node>(rules["items"]);
    if (rules.contains("additionalProperties")) others = std::make_unique<Node>(rules["additionalProperties"]);
  }

  bool has_any_type(const json& value) const {
    const json& type = rules["type"];
    bool any = false;
    for (const json& one : type.is_array() ? type : json::array({type})) any = has_type(value, one.get<std::string>()) || any;
    return any;
  }

  bool within(double size, const char* least, const char* most) const {
    return size >= rules.value(least, -INFINITY) && size <= rules.value(most, INFINITY);
  }

  bool accepts_object(const json& value) const {
    for (const std::string& name : required)
      if (!value.contains(name)) return false;
    for (const auto& [name, member] : value.items()) {
      const auto known = properties.find(name);
      const Node* node = known != properties.end() ? known->second.get() : others.get();
      if (node && !node->accepts(member)) return false;
    }
    return true;
  }

  bool accepts(const json& value) const {
    if (refuses_all) return false;
    if (rules.contains("type") && !has_any_type(value)) return false;
    if (rules.contains("const") && value != rules["const"]) return false;
    if (rules.contains("enum") && std::find(rules["enum"].begin(), rules["enum"].end(), value) == rules["enum"].end()) return false;
    if (value.is_number() && !within(value.get<double>(), "minimum", "maximum")) return false;
    if (value.is_string()) {
      const std::string& text = value.get_ref<const std::string&>();
      return within(static_cast<double>(text::num_characters(text)), "minLength", "maxLength") && (!pattern || pattern->found_in(text));
    }
    if (value.is_array())
      return within(static_cast<double>(value.size()), "minItems", "maxItems") &&
             (!items || std::all_of(value.begin(), value.end(), [&](const json& one) { return items->accepts(one); }));
    return !value.is_object() || accepts_object(value);
  }

  json rules = json::object();
  bool refuses_all = false;
  std::vector<std::string> required;
  std::optional<text::Regex> pattern;
  std::map<std::string, std::unique_ptr<Node>> properties;
  std::unique_ptr<Node> items, others;
};

JsonSchema::JsonSchema(const std::string& source) {
  std::string text = source;
  if (source.find('{') == std::string::npos) {
    if (!std::filesystem::exists(source))
      throw UserError(kWhere, "there is no file " + source, "expected a file with a JSON Schema, or the schema itself");
    text = RegularFile(source, "expected a file with a JSON Schema, or the schema itself").read_whole(kMostSchemaBytes);
  }
  try {
    if (nests_too_deep(text)) throw UserError(kWhere, "nests too deep", "expected at most " + std::to_string(kMaxJsonDepth) + " levels");
    root_ = std::make_unique<Node>(json::parse(text));
  } catch (const json::exception& e) {
    throw UserError(kWhere, std::string("is no schema: ") + e.what(), "expected an object such as {\"type\": \"object\"}");
  }
}
JsonSchema::~JsonSchema() = default;

bool JsonSchema::accepts(const json& value) const { return root_->accepts(value); }

}  // namespace tandem::reward
