// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of JSON Schema (draft 2020-12) that says what an answer must look like.
//
// Known: type, enum, const, properties, required, additionalProperties, items, minItems, maxItems, minLength, maxLength, pattern,
// minimum, maximum. These annotations ask nothing: title, description, default, examples, $schema, $id, $comment.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem::reward {

/// Threads    accepts() from any.
/// Errors     UserError for a schema that is no JSON, or has an unknown keyword: to pass it over would accept too much.
class JsonSchema {
 public:
  /// `source` is the schema itself, or the path of a file that holds it.
  explicit JsonSchema(const std::string& source);
  ~JsonSchema();
  bool accepts(const nlohmann::json& value) const;

 private:
  struct Node;
  std::unique_ptr<Node> root_;
};

}  // namespace tandem::reward
