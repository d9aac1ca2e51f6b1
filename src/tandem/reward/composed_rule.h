// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules that pass answers on to others: the length reward, and a rule for each data set.

#include <memory>
#include <string>
#include <vector>

#include "tandem/reward/rule.h"

namespace tandem::reward {

/// A rule whose function passes answers on to `parts`. It needs and reads what one of them does, and is abandoned with them.
std::unique_ptr<Rule> composed_rule(std::string name, std::vector<std::shared_ptr<Rule>> parts, Rule::Function function);

/// Kimi k1.5's length reward (graders.h); right is what `math` says.
std::unique_ptr<Rule> length_rule(std::unique_ptr<Rule> math);

/// The rule of one data set.
struct SourceRule {
  std::string source, spec;
  std::shared_ptr<Rule> rule;  ///< shared by the data sets of one spec
};
/// Each answer by the rule of its data set, or by `others` (may be null). Errors: UserError for a data set named twice; when it
/// scores, for an answer of a data set that has no rule.
std::unique_ptr<Rule> by_source(std::vector<SourceRule> rules, std::unique_ptr<Rule> others);

}  // namespace tandem::reward
