// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule that runs the program of an answer.

#include <cstdint>
#include <memory>
#include <optional>
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
  std::string code_guard = "auto";
};
void describe(OptionVisitor& field, CodeOptions& o);

/// What holds a program back from the files of this user, on a kernel with that version of Landlock (0: none); nullopt: on this one.
std::string code_guard_text(std::optional<int> landlock = {});

/// Runs the Python program in the last fenced block of a response in a sandbox, against the tests in gold (code_tests.h). `python`
/// runs it; empty: python3. On a kernel with too little Landlock, a warning. Errors: UserError where no sandbox is to be had, or not
/// the guard that is required, now; for a gold that holds no tests, when it scores. `landlock` as above.
std::unique_ptr<Rule> code_rule(const CodeOptions& options, const std::string& python, std::optional<int> landlock = {});

}  // namespace tandem::reward
