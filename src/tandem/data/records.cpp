// SPDX-License-Identifier: Apache-2.0
// Prompts from JSON Lines files and JSON arrays.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/data/source.h"

namespace tandem::data {

using nlohmann::json;

namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

class RecordSource : public PromptSource {
 public:
  RecordSource(const std::string& path, const Options& options)
      : path_(path), options_(options), name_(std::filesystem::path(path).filename().string()) {
    if (options.prompt_template.find("{prompt}") == std::string::npos)
      throw UserError("data.prompt_template", "`" + options.prompt_template + "` has no place for the question",
                      "expected a text with {prompt}");
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  const std::string& name() const override { return name_; }

  Prompt at(int64_t row) const override {
    TANDEM_CHECK(row >= 0 && row < size(), "row ", row, " of ", size());
    const Row& record = rows_[static_cast<size_t>(row)];
    Prompt prompt;
    prompt.row = row;
    prompt.text = options_.prompt_template;
    prompt.text.replace(prompt.text.find("{prompt}"), 8, record.question);
    prompt.answer = record.answer;
    prompt.data_source = name_;
    prompt.columns = record.columns;
    return prompt;
  }

  int64_t num_unanswered() const { return num_unanswered_; }

  void add(const json& record, const std::string& where) {
    if (!record.is_object())
      throw UserError(where, "is not a JSON object",
                      "expected {\"" + options_.prompt_column + "\": ..., \"" + options_.answer_column + "\": ...}");
    // Published sets hold a few problems whose answer was lost; they cannot be graded.
    if (const auto gold = record.find(options_.answer_column); gold != record.end() && gold->is_null()) {
      ++num_unanswered_;
      return;
    }
    rows_.push_back({column(record, options_.prompt_column, where), answer(column(record, options_.answer_column, where), where),
                     others(record, options_.prompt_column)});
  }

  void read_lines(const std::string& bytes, int64_t max_rows) {
    size_t begin = 0;
    for (int64_t line = 1; begin < bytes.size() && (max_rows == 0 || size() < max_rows); ++line) {
      const size_t end = std::min(bytes.find('\n', begin), bytes.size());
      const std::string text = bytes.substr(begin, end - begin), where = path_ + ":" + std::to_string(line);
      begin = end + 1;
      if (trimmed(text).empty()) continue;
      try {
        add(json::parse(text), where);
      } catch (const json::exception& e) {
        throw UserError(where, std::string("is not JSON: ") + e.what(), "expected one JSON object per line");
      }
    }
  }

  void read_array(const std::string& bytes, int64_t max_rows) {
    try {
      const json records = json::parse(bytes);
      for (size_t i = 0; i < records.size() && (max_rows == 0 || size() < max_rows); ++i)
        add(records[i], path_ + " element " + std::to_string(i));
    } catch (const json::exception& e) {
      throw UserError(path_, std::string("is not JSON: ") + e.what(), "expected an array of objects");
    }
  }

 private:
  struct Row {
    std::string question, answer, columns;
  };

  // All but the question, for rewards that go by more than the answer.
  static std::string others(const json& record, const std::string& question) {
    json rest = record;
    rest.erase(question);
    return rest.dump();
  }

  static std::string column(const json& record, const std::string& name, const std::string& where) {
    const auto found = record.find(name);
    if (found == record.end()) {
      std::vector<std::string> names;
      for (const auto& [key, value] : record.items()) names.push_back(key);
      throw UserError(where, "has no field `" + name + "`",
                      names.empty()
                          ? "the record is empty"
                          : "the nearest is `" + nearest_name(name, names) + "`; set data.prompt_column and data.answer_column");
    }
    if (found->is_string()) return found->get<std::string>();
    if (found->is_number() || found->is_boolean()) return found->dump();
    throw UserError(where, "field `" + name + "` is " + found->dump().substr(0, 40), "expected a text or a number");
  }

  std::string answer(const std::string& text, const std::string& where) const {
    if (options_.answer_after.empty()) return text;
    const size_t at = text.rfind(options_.answer_after);
    if (at == std::string::npos)
      throw UserError(where, "the answer holds no `" + options_.answer_after + "`",
                      "expected it before the final answer; see data.answer_after");
    std::string gold = trimmed(text.substr(at + options_.answer_after.size()));
    // GSM8K writes 1,000 where every rule compares with 1000.
    if (gold.find_first_not_of("-0123456789,.") == std::string::npos) std::erase(gold, ',');
    return gold;
  }

  std::string path_;
  Options options_;
  std::string name_;
  std::vector<Row> rows_;
  int64_t num_unanswered_ = 0;
};

}  // namespace

std::unique_ptr<PromptSource> open_records(const std::string& path, const Options& options, int64_t max_rows) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path))
    throw UserError(path, std::string("cannot be read: ") + std::strerror(errno ? errno : EISDIR),
                    "expected a .jsonl or .json file of prompts");
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  auto source = std::make_unique<RecordSource>(path, options);
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && bytes[first] == '[')
    source->read_array(bytes, max_rows);
  else
    source->read_lines(bytes, max_rows);
  if (source->num_unanswered() > 0) log::warning(path, ": passed over ", source->num_unanswered(), " rows whose answer is null");
  if (source->size() == 0) throw UserError(path, "holds no rows", "expected at least one prompt");
  return source;
}

}  // namespace tandem::data
