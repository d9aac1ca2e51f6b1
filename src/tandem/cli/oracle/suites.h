// SPDX-License-Identifier: Apache-2.0
#pragma once
// Expected-value files run through the library: `tandem-oracle SUITE FILE...`. A new suite is one file here, one
// declaration below and one line in suites.cpp.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::cli {

struct OracleOptions {
  std::string model;  ///< --model DIR: the tokenizer or model a file needs, where it is not found beside the file
};

/// Counts cases and prints those that fail or are skipped, one line each, on standard output.
class Report {
 public:
  explicit Report(bool quiet = false) : quiet_(quiet) {}
  void pass() { ++passed_; }
  void fail(const std::string& name, const std::string& detail);
  /// A case this build cannot do; `why` says what it would take.
  void skip(const std::string& name, const std::string& why);
  /// Passes if equal, else fails with both values.
  void expect_equal(const std::string& name, const nlohmann::json& actual, const nlohmann::json& expected);
  /// Runs one case; an exception fails it.
  void run(const std::string& name, const std::function<void()>& one_case);
  /// Prints `N passed, N failed`.
  void print_total() const;
  int64_t passed() const { return passed_; }
  int64_t failed() const { return failed_; }
  int64_t skipped() const { return skipped_; }

 private:
  bool quiet_;
  int64_t passed_ = 0, failed_ = 0, skipped_ = 0;
};

struct Suite {
  const char* name;
  void (*run)(const std::string& file, const OracleOptions& options, Report& report);
};
const std::vector<Suite>& suites();

/// Runs a suite on files; a directory stands for all files in it. Errors: UserError for an unknown suite or missing file.
void run_suite(const std::string& suite, const std::vector<std::string>& files, const OracleOptions& options, Report& report);

/// The rows of a JSON Lines file, split at "\n" alone. Errors: UserError.
std::vector<nlohmann::json> oracle_rows(const std::string& file);
nlohmann::json oracle_json(const std::string& file);

void run_tokenizer(const std::string& file, const OracleOptions& options, Report& report);
void run_safetensors(const std::string& file, const OracleOptions& options, Report& report);
void run_grader(const std::string& file, const OracleOptions& options, Report& report);

}  // namespace tandem::cli
