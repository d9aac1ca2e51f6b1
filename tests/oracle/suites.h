// SPDX-License-Identifier: Apache-2.0
#pragma once
// Expected-value files run through the library: `tandem-oracle SUITE FILE...`. A new suite is one file here, one
// declaration below and one line in suites.cpp.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle/report.h"

namespace tandem::cli {

struct OracleOptions {
  std::string model;  ///< --model DIR: the tokenizer or model a file needs, where it is not found beside the file
  std::string kernels = "auto", device = "cpu";  ///< as run.kernels and run.device
};

struct Suite {
  const char* name;
  void (*run)(const std::string& file, const OracleOptions& options, Report& report);
  bool takes_folders = false;  ///< a case is a model folder; else a folder stands for the files in it
};
const std::vector<Suite>& suites();

/// Runs a suite on files; a directory stands for all files in it, or for all model folders in it. Errors: UserError for an
/// unknown suite, a missing file, or one of another form.
void run_suite(const std::string& suite, const std::vector<std::string>& files, const OracleOptions& options, Report& report);

/// The rows of a JSON Lines file, split at "\n" alone. Errors: UserError.
std::vector<nlohmann::json> oracle_rows(const std::string& file);
/// The same, with the keys in the order of the file.
std::vector<nlohmann::ordered_json> oracle_ordered_rows(const std::string& file);
nlohmann::json oracle_json(const std::string& file);

void run_tokenizer(const std::string& file, const OracleOptions& options, Report& report);
void run_chat(const std::string& file, const OracleOptions& options, Report& report);
void run_safetensors(const std::string& file, const OracleOptions& options, Report& report);
void run_grader(const std::string& file, const OracleOptions& options, Report& report);
void run_balance(const std::string& file, const OracleOptions& options, Report& report);
void run_flops(const std::string& file, const OracleOptions& options, Report& report);

}  // namespace tandem::cli
