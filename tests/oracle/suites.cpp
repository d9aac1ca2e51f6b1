// SPDX-License-Identifier: Apache-2.0
#include "oracle/suites.h"

#include <algorithm>
#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/base/options.h"
#include "tandem/base/json_file.h"
#include "oracle/oracle_losses.h"
#include "oracle/oracle_model.h"

namespace tandem::cli {

using nlohmann::json;
namespace fs = std::filesystem;

const std::vector<Suite>& suites() {
  static const std::vector<Suite> all = {
      {"tokenizer", run_tokenizer},
      {"chat", run_chat},
      {"safetensors", run_safetensors},
      {"grader", run_grader},
      {"balance", run_balance},
      {"flops", run_flops},
      {"losses", [](const std::string& file, const OracleOptions&,
                    Report& report) { run_losses(oracle_json(file), fs::path(file).filename().string(), report); }},
      {"staleness", [](const std::string& file, const OracleOptions&,
                       Report& report) { run_staleness(oracle_json(file), fs::path(file).filename().string(), report); }},
      {"model", [](const std::string& folder, const OracleOptions& options,
                   Report& report) { run_model(folder, options, report); }, true},
  };
  return all;
}

namespace {

std::string short_text(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 300 ? text.substr(0, 300) + "..." : text;
}

std::string read_whole(const std::string& file) {
  return RegularFile(file, "expected a file of expected values").read_whole();
}

bool is_model_folder(const fs::path& path) { return fs::is_regular_file(path / "golden.safetensors"); }

// What a folder stands for: the expected-value files in it, or the folder itself if there are none.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> inside;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension().string().starts_with(".json")) inside.push_back(entry.path().string());
  std::sort(inside.begin(), inside.end());
  if (inside.empty()) inside = {folder};
  return inside;
}

// A model folder, a file of one, or a folder of model folders.
std::vector<std::string> model_folders_in(const std::string& path) {
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  if (is_model_folder(folder)) return {folder.lexically_normal().string()};
  std::vector<std::string> inside;
  if (fs::is_directory(path))
    for (const auto& entry : fs::directory_iterator(path))
      if (is_model_folder(entry.path())) inside.push_back(entry.path().string());
  std::sort(inside.begin(), inside.end());
  if (inside.empty()) throw UserError(path, "is no model folder and holds none", "expected golden.safetensors in it");
  return inside;
}

template <class Json>
std::vector<Json> rows_of(const std::string& file) {
  const std::string bytes = read_whole(file);
  std::vector<Json> rows;
  size_t begin = 0;
  for (int64_t line = 1; begin < bytes.size(); ++line) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    if (end > begin) {
      Json row = Json::parse(bytes.begin() + static_cast<ptrdiff_t>(begin), bytes.begin() + static_cast<ptrdiff_t>(end), nullptr, false);
      if (row.is_discarded()) throw UserError(file + ":" + std::to_string(line), "is not JSON", "expected one JSON object per line");
      rows.push_back(std::move(row));
    }
    begin = end + 1;
  }
  return rows;
}

}  // namespace

void Report::expect_equal(const std::string& name, const json& actual, const json& expected) {
  if (actual == expected)
    pass();
  else
    fail(name, "got " + short_text(actual) + ", expected " + short_text(expected));
}
void Report::run(const std::string& name, const std::function<void()>& one_case) {
  try {
    one_case();
  } catch (const std::exception& e) {
    fail(name, std::string("threw: ") + e.what());
  }
}
void run_suite(const std::string& name, const std::vector<std::string>& files, const OracleOptions& options, Report& report) {
  std::vector<std::string> names;
  for (const Suite& suite : suites()) names.emplace_back(suite.name);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw UserError("tandem-oracle", "there is no suite `" + name + "`", "the nearest is `" + nearest_name(name, names) + "`");
  const Suite& suite = suites()[static_cast<size_t>(found - names.begin())];
  for (const std::string& file : files) {
    std::vector<std::string> inside = {file};
    if (suite.takes_folders)
      inside = model_folders_in(file);
    else if (fs::is_directory(file))
      inside = files_in(file);
    for (const std::string& one : inside) {
      try {
        suite.run(one, options, report);
      } catch (const json::exception& e) {
        throw UserError(one, "is no file of suite `" + name + "`: " + e.what(), "expected the form of the files in tests/oracles");
      }
    }
  }
}

std::vector<json> oracle_rows(const std::string& file) { return rows_of<json>(file); }
std::vector<nlohmann::ordered_json> oracle_ordered_rows(const std::string& file) { return rows_of<nlohmann::ordered_json>(file); }

json oracle_json(const std::string& file) {
  json value = json::parse(read_whole(file), nullptr, false);
  if (value.is_discarded()) throw UserError(file, "is not JSON", "expected a file of expected values");
  return value;
}

}  // namespace tandem::cli
