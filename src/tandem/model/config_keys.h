// SPDX-License-Identifier: Apache-2.0
#pragma once
// Typed reading of a Hugging Face config.json: every error names the file, the key and what would be right.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem::model {

/// Far above any model, and low enough that the bytes of all of them together are a number.
inline constexpr int64_t kMostLayers = int64_t{1} << 12, kMostWidth = int64_t{1} << 22, kMostRows = int64_t{1} << 24;

/// One object of a config. Errors: UserError.
class ConfigKeys {
 public:
  ConfigKeys(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  auto items() const { return object_.items(); }
  bool is_empty() const { return object_.empty(); }
  bool contains(const char* key) const { return object_.contains(key); }
  /// There, and not null.
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  const nlohmann::json& at(const char* key) const { return object_.at(key); }
  int64_t positive(const char* key, int64_t most) const;
  int64_t positive(const char* key, int64_t most, int64_t fallback) const { return has(key) ? positive(key, most) : fallback; }
  int64_t whole(const char* key, int64_t most, int64_t fallback) const;  ///< may be 0
  double number(const char* key) const;                                  ///< above 0
  double number(const char* key, double fallback) const { return object_.contains(key) ? number(key) : fallback; }
  bool flag(const char* key, bool fallback = false) const;
  std::string text(const char* key, const std::string& fallback) const;
  ConfigKeys inside(const char* key) const;                              ///< of an object
  [[noreturn]] void refuse(const char* key, const std::string& wanted) const;
  const std::string& where() const { return where_; }

 private:
  void require(const char* key) const;
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace tandem::model
