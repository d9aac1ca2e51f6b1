// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules that ask Python: a function of the user, and the math-verify package.

#include <cstdint>
#include <memory>
#include <string>

#include "tandem/base/options.h"
#include "tandem/monitor/notices.h"

namespace tandem::reward {

class Rule;

/// How the answers of a group are asked about.
struct BatchOptions {
  int64_t workers = 1;    ///< threads that grade, and processes of each rule that has them
  double timeout_s = 60;  ///< for one batch
  /// What is said of failures: no option. Copies of a recipe share it, so that its ranks say each thing once.
  std::shared_ptr<monitor::Notices> notices = std::make_shared<monitor::Notices>();
};

struct PythonOptions {
  std::string python;             ///< a function of the user, FILE.py:NAME
  std::string python_executable;  ///< what runs it, math_verify and the programs of `code`
  int64_t python_retries = 1;
  int64_t python_memory_mib = 8192;
};
void describe(OptionVisitor& field, PythonOptions& o);

/// A user's function, options.python; docs/rewards.md describes its two forms. Parts are named `python/NAME`. Errors: UserError for a
/// file that does not load, now; for what the function raises, when it scores.
std::unique_ptr<Rule> python_rule(const PythonOptions& options, const BatchOptions& batch);

/// The math-verify package: gold and response are parsed as LaTeX and as plain expressions and compared by its verify().
/// Errors: UserError if options.python_executable has no such package.
std::unique_ptr<Rule> math_verify_rule(const PythonOptions& options, const BatchOptions& batch);

struct MathOptions {
  std::string fallback = "none";  ///< or math_verify
};
void describe(OptionVisitor& field, MathOptions& o);
/// `math`; but where it finds two answers different without having read both, `verify` is asked instead.
std::unique_ptr<Rule> math_with_fallback(std::unique_ptr<Rule> math, std::unique_ptr<Rule> verify);

}  // namespace tandem::reward
