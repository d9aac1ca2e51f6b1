// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule that runs the program of an answer.

#include <cstdint>
#include <memory>
#include <string>

#include "tandem/base/options.h"

namespace tandem::reward {

class Rule;

struct CodeOptions {
  double code_timeout_s = 10;
  int64_t code_memory_mib = 512;
  int64_t code_output_kib = 1024;
  int64_t code_file_mib = 16;
  std::string code_score = "all";
};
void describe(OptionVisitor& field, CodeOptions& o);

/// Runs the Python program in the last fenced block of a response in a sandbox, against the tests in gold (code_tests.h). `python`
/// runs it; empty: python3. Errors: UserError where no sandbox is to be had, now; for a gold that holds no tests, when it scores.
std::unique_ptr<Rule> code_rule(const CodeOptions& options, const std::string& python);

}  // namespace tandem::reward
