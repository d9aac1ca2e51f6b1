// SPDX-License-Identifier: Apache-2.0
// Suite `chat`: conversations, the templates that stand beside them, and the texts these must give.
#include <filesystem>
#include <map>
#include <optional>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "oracle/suites.h"
#include "tandem/text/chat.h"
#include "tandem/text/tokenizer.h"

namespace tandem::cli {

namespace fs = std::filesystem;
using Row = nlohmann::ordered_json;

namespace {

// For the ids of the texts, where it is there.
std::optional<text::Tokenizer> tokenizer_of(const std::string& file, const OracleOptions& options) {
  const std::string folder =
      options.model.empty() ? (fs::absolute(file).parent_path() / "../../data/qwen2.5-tokenizer").string() : options.model;
  if (options.model.empty() && !fs::exists(folder)) return {};
  return text::Tokenizer::load(folder);
}

text::Conversation conversation_of(const Row& row) {
  text::Conversation conversation;
  conversation.messages = row.at("messages");
  conversation.tools = row.at("tools");
  conversation.variables = row.at("extra_variables");
  conversation.add_generation_prompt = row.at("add_generation_prompt");
  return conversation;
}

void run_case(const text::ChatTemplate& chat, const Row& row, const text::Tokenizer* tokenizer, Report& report,
              const std::string& name) {
  std::string text;
  try {
    text = chat.render(conversation_of(row));
  } catch (const UserError& e) {
    const std::string what = e.what();
    if (!row.contains("error")) return report.fail(name, "refused: " + what);
    if (what.find(row["error"].get<std::string>()) == std::string::npos)
      return report.expect_equal(name, what, row["error"].get<std::string>());
    return report.pass();
  }
  if (row.contains("error")) return report.fail(name, "rendered, and should be refused: " + row["error"].get<std::string>());
  const std::string expected = row.at("text");
  if (text == expected && tokenizer && row.contains("ids")) {
    const auto ids = row["ids"].get<std::vector<int32_t>>();
    return report.expect_equal(name + " ids", tokenizer->encode(text), ids);
  }
  if (row.contains("ids") && !tokenizer) report.skip(name + " ids", "no tokenizer; --model gives one");
  report.expect_equal(name, text, expected);
}

}  // namespace

void run_chat(const std::string& file, const OracleOptions& options, Report& report) {
  const fs::path templates = fs::path(file).parent_path() / "templates";
  const auto tokenizer = tokenizer_of(file, options);
  std::map<std::string, text::ChatTemplate> read;
  int64_t number = 0;
  for (const Row& row : oracle_ordered_rows(file)) {
    const std::string stem = row.at("template_file"),
                      name = fs::path(file).filename().string() + ":" + std::to_string(++number) + " " + stem;
    report.run(name, [&] {
      const std::string path = (templates / stem).string();
      if (!read.contains(stem)) read.emplace(stem, text::ChatTemplate(read_file(path), path));
      run_case(read.at(stem), row, tokenizer ? &*tokenizer : nullptr, report, name);
    });
  }
}

}  // namespace tandem::cli
