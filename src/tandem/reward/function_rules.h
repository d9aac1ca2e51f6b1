// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules that are a function of one answer, by name, each with its options. The published ones are in graders.h and math/.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tandem/base/options.h"

namespace tandem::reward {

class Rule;

struct FunctionOptions {
  std::string method = "strict";
  std::string pattern;
  std::string choices_column = "choices";
  std::string schema;
  bool strict_box = false;
  bool integer_gold = false;
  double cosine_min_wrong = -1.0;
  double cosine_max_wrong = -0.5;
  double cosine_min_right = 0.5;
  double cosine_max_right = 1.0;
  int64_t max_tokens = 0;  ///< as full_tokens() says
  int64_t overlong_cache = 200;
  int64_t repetition_ngram = 3;
  double repetition_penalty = -1.0;

  /// Of an answer of full length. A run knows its longest response; elsewhere it is TRL's 1000.
  int64_t full_tokens() const { return max_tokens > 0 ? max_tokens : 1000; }
};
void describe(OptionVisitor& field, FunctionOptions& o);

std::vector<std::string> function_rule_names();
/// Null if there is no such rule. Errors: UserError for options that the rule cannot use.
std::unique_ptr<Rule> function_rule(const std::string& name, const FunctionOptions& options);

}  // namespace tandem::reward
