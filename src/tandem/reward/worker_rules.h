// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules that are more than a function of one answer: a user's Python function, the math-verify package, programs in a sandbox, a
// server, what compares the answers of a group, and a rule for each data set.

#include <memory>
#include <string>
#include <vector>

#include "tandem/reward/rule.h"

namespace tandem::reward {

/// A user's function, `FILE.py:NAME` in options.python; docs/rewards.md describes its two forms. Parts are named
/// `python/NAME`. Errors: UserError for a file that does not load, now; for what the function raises, when it scores.
std::unique_ptr<Rule> python_rule(const Options& options);

/// The math-verify package: gold and response are parsed as LaTeX and as plain expressions and compared by its verify().
/// Errors: UserError if options.python_executable has no such package.
std::unique_ptr<Rule> math_verify_rule(const Options& options);

/// `math`; but where it finds two answers different without having read both, `verify` is asked instead.
std::unique_ptr<Rule> math_with_fallback(std::unique_ptr<Rule> math, std::unique_ptr<Rule> verify);

/// Kimi k1.5's length reward (graders.h); right is what `math` says.
std::unique_ptr<Rule> length_rule(const Options& options);

/// The Python program in the last fenced block of a response, run in a sandbox against the tests in gold (code_tests.h).
/// Errors: UserError where no sandbox is to be had, now; for a gold that holds no tests, when it scores.
std::unique_ptr<Rule> code_rule(const Options& options);

/// The rule of one data set.
struct SourceRule {
  std::string source, spec;
  std::shared_ptr<Rule> rule;  ///< shared by the data sets of one spec
};
/// Each answer by the rule of its data set, or by `others` (may be null). Errors: UserError for a data set named twice; when it
/// scores, for an answer of a data set that has no rule.
std::unique_ptr<Rule> by_source(std::vector<SourceRule> rules, std::unique_ptr<Rule> others);

/// Scores from a server: POST of batch_json to options.url; the reply is a list of numbers or of objects with `score` and
/// further numbers, alone or under `scores` or `rewards`. Errors: UserError for another reply or one of status 4xx;
/// PeerError if the server cannot be had after options.http_retries more attempts.
std::unique_ptr<Rule> http_rule(const Options& options);

}  // namespace tandem::reward
