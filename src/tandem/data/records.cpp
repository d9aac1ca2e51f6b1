// SPDX-License-Identifier: Apache-2.0
// Prompts from JSON Lines files, JSON arrays and Parquet files.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/input/file_kind.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/base/options.h"
#include "tandem/base/strings.h"
#include "tandem/data/backend/parquet.h"
#include "tandem/data/source.h"
#include "tandem/data/generated/word_problems.h"

namespace tandem::data {

using json = nlohmann::ordered_json;  // templates print messages as they are

namespace {

constexpr int64_t kMostDataBytes = int64_t{1} << 40;  // the rows are kept, so the machine's memory is the bound

constexpr const char* kReadKinds = "expected JSON Lines or an array of JSON in UTF-8 (.jsonl, .json), or a .parquet file";

// Where the text of a question goes. Whatever else has braces is text.
constexpr std::string_view kPlace = "{prompt}";

void check_template(const std::string& text) {
  const auto refuse = [&](const char* what) {
    throw UserError("data.prompt_template", "`" + text + "` " + what, "expected a text with {prompt}");
  };
  if (text.find("{{prompt}}") != std::string::npos) refuse("has {{prompt}}, and its outer braces would stay");
  if (text.find(kPlace) == std::string::npos) refuse("has no place for the question");
}

bool is_number(const json& value) { return value.is_number() || is_long_number(value); }

class RecordSource : public PromptSource {
 public:
  RecordSource(const std::string& path, const Options& options)
      : path_(path), options_(options), name_(std::filesystem::path(path).filename().string()) {
    check_template(options.prompt_template);
  }

  int64_t size() const override { return static_cast<int64_t>(records_.size()); }
  std::string where(int64_t row) const override { return place(records_[static_cast<size_t>(row)].number); }
  const std::string& name() const override { return name_; }
  std::string question(int64_t row) const override { return records_[static_cast<size_t>(row)].question; }

  Prompt at(int64_t row) const override {
    TANDEM_CHECK(row >= 0 && row < size(), "row ", row, " of ", size());
    const Stored& record = records_[static_cast<size_t>(row)];
    Prompt prompt;
    prompt.row = row;
    if (record.messages.empty()) prompt.text = replaced(options_.prompt_template, kPlace, record.question);
    prompt.messages = record.messages;
    prompt.answer = record.answer;
    prompt.data_source = record.source.empty() ? name_ : record.source;
    prompt.rank = record.rank;
    prompt.columns = whole(record);
    return prompt;
  }

  int64_t num_unanswered() const { return num_unanswered_; }

  /// `number` counts the records or lines of the file from 1.
  void add(const json& record, int64_t number) {
    const std::string where = place(number);
    if (!record.is_object())
      throw UserError(where, "is not a JSON object",
                      "expected {\"" + options_.prompt_column + "\": ..., \"" + options_.answer_column + "\": ...}");
    // Published sets hold a few problems whose answer was lost; they cannot be graded.
    const bool in_column = !options_.answer_column.empty() && options_.answer_column != kNoAnswer;
    const json* gold = in_column ? find(record, options_.answer_column) : nullptr;
    if (gold && gold->is_null()) {
      ++num_unanswered_;
      return;
    }
    Stored kept;
    kept.number = number;
    keep_columns(record, kept);
    json prompt = field(record, options_.prompt_column, where);
    if (options_.answer_column.empty())
      kept.answer = answer(last_answer(prompt, where), where);
    else if (options_.answer_column != kNoAnswer)
      kept.answer = answer(answer_text(field(record, options_.answer_column, where)), where);
    read_prompt(prompt, record, where, kept);
    if (!options_.source_column.empty())
      kept.source = plain_text(options_.source_column, field(record, options_.source_column, where), where);
    if (!options_.curriculum_column.empty()) {
      const json& rank = field(record, options_.curriculum_column, where);
      if (!is_number(rank)) throw wrong_field(options_.curriculum_column, rank, where, "a number");
      kept.rank = std::strtod(exact_text(rank).c_str(), nullptr);
    }
    records_.push_back(std::move(kept));
  }

  void read_columns(int64_t max_rows) {
    ParquetRequest request{path_, {}, keeps_all()};
    std::vector<std::string> names = {options_.prompt_column, options_.answer_column, options_.source_column, options_.tools_column,
                                      options_.curriculum_column};
    names.insert(names.end(), options_.columns.begin(), options_.columns.end());
    for (const std::string& name : names)
      for (const std::string& column : {name, name.substr(0, name.find('.'))})
        if (!column.empty()) request.columns.push_back(column);
    read_parquet(request, [&](const json& record, int64_t row) {
      if (max_rows > 0 && size() >= max_rows) return false;
      add(record, row + 1);
      return true;
    });
  }

  void read_lines(const std::string& bytes, int64_t max_rows) {
    lines_ = true;
    size_t begin = 0;
    for (int64_t line = 1; begin < bytes.size() && (max_rows == 0 || size() < max_rows); ++line) {
      const size_t end = std::min(bytes.find('\n', begin), bytes.size());
      const std::string text = bytes.substr(begin, end - begin), where = place(line);
      begin = end + 1;
      if (trimmed(text).empty()) continue;
      const ExactJson parsed = parse_exact(text);
      if (!parsed.wrong.empty() && line == 1) refuse_table(text);
      if (!parsed.wrong.empty()) throw UserError(where, parsed.wrong, "expected one JSON object per line, in UTF-8");
      add(parsed.value, line);
    }
  }

  void read_array(const std::string& bytes, int64_t max_rows) {
    const ExactJson records = parse_exact(bytes);
    if (!records.wrong.empty()) throw UserError(path_, records.wrong, "expected an array of objects, in UTF-8");
    for (size_t i = 0; i < records.value.size() && (max_rows == 0 || size() < max_rows); ++i)
      add(records.value[i], static_cast<int64_t>(i) + 1);
  }

 private:
  struct Stored {  // what is kept of a record
    std::string question;  // as the record has it; of messages the user's last
    std::string messages, answer, source, columns;
    size_t num_columns = 0;
    double rank = 0;
    int64_t number = 0;
  };
  static constexpr size_t kMostColumns = 1000;  // of a set, for a row to get those of others

  // A table has a line of names first.
  void refuse_table(const std::string& first_line) const {
    const bool is_csv = path_.ends_with(".csv"), is_tsv = path_.ends_with(".tsv");
    const size_t begin = first_line.find_first_not_of(" \t\xEF\xBB\xBF");
    if (begin == std::string::npos || first_line[begin] == '{' || first_line[begin] == '[') return;
    const bool has_tab = first_line.find('\t') != std::string::npos, has_comma = first_line.find_first_of(",;") != std::string::npos;
    if (!is_csv && !is_tsv && !has_tab && !has_comma) return;
    throw UserError(path_, std::string(is_csv || is_tsv ? "is" : "seems to be") + " a table of " + (is_tsv || has_tab ? "tabs" : "commas") +
                               " (its first line is `" + first_line.substr(0, 60) + "`)", kReadKinds);
  }

  std::string place(int64_t number) const { return join_text(path_, lines_ ? ":" : " row ", number); }

  bool keeps_all() const { return std::ranges::count(options_.columns, "*") > 0; }

  // A column that only other rows of the set have is null.
  std::string whole(const Stored& record) const {
    if (record.num_columns == column_names_.size() || column_names_.size() > kMostColumns) return record.columns;
    std::set<std::string> lacking = column_names_;
    const json own = json::parse(record.columns);
    for (const auto& [name, value] : own.items()) lacking.erase(name);
    std::string columns = record.columns.substr(0, record.columns.size() - 1);
    for (const std::string& name : lacking) columns += (columns.size() > 1 ? "," : "") + exact_text(name) + ":null";
    return columns + "}";
  }

  // For rewards that go by more than the text of the prompt and the answer. The question is a column as the others are.
  void keep_columns(const json& record, Stored& out) {
    if (options_.columns.empty()) return;
    json kept = keeps_all() ? record : json::object();
    std::vector<std::string> names = options_.columns;
    if (!keeps_all()) names.push_back(options_.prompt_column);
    for (const std::string& name : names)
      if (const json* value = name == "*" || kept.contains(name) ? nullptr : find(record, name)) kept[name] = *value;
    for (const auto& [name, value] : kept.items())
      if (column_names_.size() <= kMostColumns) column_names_.insert(name);
    out.num_columns = kept.size();
    out.columns = exact_text(kept);
  }

  // The field of that name, or the one its dots lead to; null if there is none.
  static const json* find(const json& record, const std::string& name) {
    if (const auto found = record.find(name); found != record.end()) return &*found;
    const json* at = &record;
    for (const std::string_view part : split(name, '.')) {
      const auto found = at->is_object() ? at->find(std::string(part)) : at->end();
      if (!at->is_object() || found == at->end()) return nullptr;
      at = &*found;
    }
    return at;
  }

  const json& field(const json& record, const std::string& name, const std::string& where) const {
    if (const json* found = find(record, name)) return *found;
    std::vector<std::string> names;
    for (const auto& [key, value] : record.items()) {
      names.push_back(key);
      if (value.is_object())
        for (const auto& [inner, unused] : value.items()) names.push_back(key + "." + inner);
    }
    throw UserError(where, "has no field `" + name + "`",
                    names.empty()
                        ? "the record is empty"
                        : nearest_of(name, names) + "; set data.prompt_column and data.answer_column" + no_answer_hint(name));
  }

  // What may be meant, and what there is, of many the first.
  static std::string nearest_of(const std::string& wanted, const std::vector<std::string>& names) {
    constexpr size_t kMostListed = 12;
    const std::string near = near_name(wanted, names);
    std::string list;
    for (const std::string& name : std::span(names).first(std::min(names.size(), kMostListed)))
      list += (list.empty() ? "`" : ", `") + name + "`";
    if (names.size() > kMostListed) list += join_text(" and ", names.size() - kMostListed, " more");
    return near.empty() ? "it has " + list : "the nearest is `" + near + "` of " + list;
  }

  std::string no_answer_hint(const std::string& name) const {
    return name == options_.answer_column ? ", the latter to none for rows without answers" : "";
  }

  static UserError wrong_field(const std::string& name, const json& value, const std::string& where, const std::string& right) {
    return UserError(where, "field `" + name + "` is " + exact_text(value).substr(0, 40),
                     "expected " + right);
  }

  static std::string plain_text(const std::string& name, const json& value, const std::string& where) {
    if (value.is_string()) return value.get<std::string>();
    if (is_number(value) || value.is_boolean()) return exact_text(value);
    throw wrong_field(name, value, where, "a text or a number");
  }

  // Lists and objects go to the rule as JSON.
  static std::string answer_text(const json& value) {
    return value.is_string() ? value.get<std::string>() : exact_text(value);
  }

  static bool has_role(const json& message) {
    return message.is_object() && message.contains("role") && message["role"].is_string();
  }

  // A list, or the JSON text of one; null for a row without tools.
  json tools_of(const json& record, const std::string& where) const {
    const json* found = find(record, options_.tools_column);
    if (!found || found->is_null()) return nullptr;
    json tools = found->is_string() ? parse_exact(found->get<std::string>()).value : *found;
    if (!tools.is_array()) throw wrong_field(options_.tools_column, *found, where, "a list of tools");
    return tools;
  }

  // Takes the answer off the end of a conversation.
  std::string last_answer(json& messages, const std::string& where) const {
    const bool answered =
        messages.is_array() && messages.size() > 1 && has_role(messages.back()) && messages.back()["role"] == "assistant" &&
        messages.back().contains("content");
    if (!answered)
      throw wrong_field(options_.prompt_column, messages, where,
                        "messages that end with one of the assistant; see data.answer_column");
    std::string text = answer_text(messages.back()["content"]);
    messages.erase(messages.size() - 1);
    return text;
  }

  void read_prompt(const json& prompt, const json& record, const std::string& where, Stored& kept) const {
    json messages = prompt;
    if (!prompt.is_array()) {
      if (!prompt.is_string() && !is_number(prompt) && !prompt.is_boolean())
        throw wrong_field(options_.prompt_column, prompt, where, "a text, a number or a list of messages");
      kept.question = plain_text(options_.prompt_column, prompt, where);
      if (!options_.as_chat) return;
      messages = json::array();
      if (!options_.system_message.empty()) messages.push_back({{"role", "system"}, {"content", options_.system_message}});
      messages.push_back({{"role", "user"}, {"content", replaced(options_.prompt_template, kPlace, kept.question)}});
    }
    if (messages.empty() || !std::all_of(messages.begin(), messages.end(), has_role))
      throw wrong_field(options_.prompt_column, prompt, where, "a text, or messages {\"role\":, \"content\":}");
    if (prompt.is_array())
      for (const json& message : messages)
        if (message["role"] == "user" && message.contains("content")) kept.question = answer_text(message["content"]);
    json conversation = {{"messages", std::move(messages)}};
    if (!options_.tools_column.empty()) conversation["tools"] = tools_of(record, where);
    kept.messages = exact_text(conversation);
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
  bool lines_ = false;
  Options options_;
  std::string name_;
  std::vector<Stored> records_;
  std::set<std::string> column_names_;  // of all records
  int64_t num_unanswered_ = 0;
};

std::unique_ptr<PromptSource> checked(std::unique_ptr<RecordSource> source, const std::string& path) {
  if (source->num_unanswered() > 0) log::warning(path, ": passed over ", source->num_unanswered(), " rows whose answer is null");
  if (source->size() == 0) throw UserError(path, "holds no rows", "expected at least one prompt");
  return source;
}

}  // namespace

std::unique_ptr<PromptSource> open_records(const std::string& path, const Options& options, int64_t max_rows) {
  const RegularFile file(path, "expected a .jsonl, .json or .parquet file of prompts; `scripts/get gsm8k` and `scripts/get math` fetch "
                               "some, or say what to put where by hand");
  auto source = std::make_unique<RecordSource>(path, options);
  std::string begin(kFileKindBytes, '\0');
  begin.resize(static_cast<size_t>(file.read(0, begin)));
  const std::string kind = file_kind(begin);
  const bool is_parquet = begin.starts_with("PAR1");
  if (is_parquet || (path.ends_with(".parquet") && kind.empty())) {
    source->read_columns(max_rows);
    return checked(std::move(source), path);
  }
  if (!kind.empty()) throw UserError(path, "is " + kind, kReadKinds);
  const std::string bytes = file.read_whole(kMostDataBytes);
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && bytes[first] == '[')
    source->read_array(bytes, max_rows);
  else
    source->read_lines(bytes, max_rows);
  return checked(std::move(source), path);
}

std::unique_ptr<PromptSource> open_word_problems(const Options& options, Split split) {
  const bool is_train = split == Split::kTrain;
  int64_t rows = is_train ? options.synthetic_rows : options.synthetic_eval_rows;
  if (const int64_t most = is_train ? options.max_rows : options.eval_max_rows; most > 0) rows = std::min(rows, most);
  auto source = std::make_unique<RecordSource>("word_problems", options);
  for (int64_t row = 0; row < rows; ++row) {
    WordProblem problem = word_problem(options, split, row);
    source->add({{"question", std::move(problem.question)}, {"answer", std::to_string(problem.answer)}}, row + 1);
  }
  return source;
}

}  // namespace tandem::data
