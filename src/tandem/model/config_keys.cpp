// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/config_keys.h"

#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::model {

void ConfigKeys::refuse(const char* key, const std::string& wanted) const {
  throw UserError(where_, join_text("\"", key, "\" is ", at(key).dump().substr(0, 80)), wanted);
}

void ConfigKeys::require(const char* key) const {
  if (!object_.contains(key)) throw UserError(where_, join_text("no \"", key, "\""), "a Hugging Face config.json");
}

int64_t ConfigKeys::positive(const char* key, int64_t most) const {
  require(key);
  const nlohmann::json& v = at(key);
  if (!v.is_number_integer() || v.get<int64_t>() <= 0 || v.get<int64_t>() > most)
    refuse(key, join_text("a positive integer, at most ", most));
  return v.get<int64_t>();
}

int64_t ConfigKeys::whole(const char* key, int64_t most, int64_t fallback) const {
  return has(key) && at(key) == 0 ? 0 : positive(key, most, fallback);
}

double ConfigKeys::number(const char* key) const {
  require(key);
  const nlohmann::json& v = at(key);
  if (!v.is_number() || !(v.get<double>() > 0) || !std::isfinite(v.get<double>())) refuse(key, "a positive number");
  return v.get<double>();
}

bool ConfigKeys::flag(const char* key, bool fallback) const {
  if (!object_.contains(key)) return fallback;
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

std::string ConfigKeys::text(const char* key, const std::string& fallback) const {
  if (!object_.contains(key)) return fallback;
  if (!at(key).is_string()) refuse(key, "a text");
  return at(key).get<std::string>();
}

ConfigKeys ConfigKeys::inside(const char* key) const {
  if (!at(key).is_object()) refuse(key, "an object, or null");
  return {at(key), where_ + ": " + key};
}

}  // namespace tandem::model
