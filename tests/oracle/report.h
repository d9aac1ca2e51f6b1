// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts the cases of an oracle suite and prints what did not pass.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "tandem/base/strings.h"

namespace tandem::cli {

class Report {
 public:
  explicit Report(std::ostream& out) : out_(out) {}

  void pass() { ++num_passed_; }
  void fail(const std::string& case_name, const std::string& why) {
    ++num_failed_;
    out_ << terminal_text("FAIL " + case_name + ": " + why) << "\n";
  }
  /// Skipped cases are counted by reason and named by summary().
  void skip(const std::string& case_name, const std::string& why) { skipped_[why].push_back(case_name); }

  /// Passes if equal, else fails with both values.
  void expect_equal(const std::string& case_name, const nlohmann::json& actual, const nlohmann::json& expected);
  /// Runs one case; an exception fails it.
  void run(const std::string& case_name, const std::function<void()>& one_case);

  void summary() const {
    for (const auto& [why, names] : skipped_) {
      out_ << names.size() << " skipped (" << why << "):";
      for (const std::string& name : names) out_ << " " << name;
      out_ << "\n";
    }
    out_ << num_passed_ << " passed, " << num_failed_ << " failed\n";
  }
  int64_t num_passed() const { return num_passed_; }
  int64_t num_failed() const { return num_failed_; }

 private:
  std::ostream& out_;
  int64_t num_passed_ = 0, num_failed_ = 0;
  std::map<std::string, std::vector<std::string>> skipped_;
};

}  // namespace tandem::cli
