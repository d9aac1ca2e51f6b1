// SPDX-License-Identifier: Apache-2.0
// A digit that names a mapping of columns, then JSON Lines, a JSON array or a Parquet file: refused with a UserError, or its rows are
// prompts that are the same whenever asked for, in UTF-8 and with columns that are JSON.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "folder.h"
#include "tandem/base/error.h"
#include "tandem/data/source.h"

using namespace tandem;

namespace {

data::Options mapping(char digit) {
  data::Options o;
  switch (digit) {
    case '1': o.prompt_column = "prompt", o.answer_column = "reward_model.ground_truth", o.source_column = "data_source"; break;
    case '2': o.prompt_column = "messages", o.answer_column = "", o.tools_column = "tools"; break;
    case '3': o.answer_after = "####", o.as_chat = true, o.system_message = "Be brief."; break;
    case '4': o.curriculum_column = "extra_info.level", o.prompt_template = "Q: {prompt}\nA:"; break;
    case '5': o.prompt_column = "a.b", o.answer_column = "a.c", o.source_column = "a.b"; break;
    case '6': o.answer_column = data::kNoAnswer, o.columns = {"extra_info.level", "answer"}; break;
    default: break;
  }
  return o;
}

void check(const data::PromptSource& source) {
  for (int64_t row = 0; row < source.size(); ++row) {
    const data::Prompt prompt = source.at(row), again = source.at(row);
    if (prompt.text != again.text || prompt.answer != again.answer || prompt.messages != again.messages) std::abort();
    if (!nlohmann::json::accept(prompt.columns)) std::abort();
    if (!prompt.messages.empty() && !nlohmann::json::parse(prompt.messages).at("messages").is_array()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const data::Options options = mapping(input[0]);
  input.remove_prefix(1);
  const std::string path = folder.write(input.starts_with("PAR1") ? "rows.parquet" : "rows.jsonl", input);
  try {
    check(*data::open_records(path, options, 0));
  } catch (const UserError&) {
    return 0;
  }
  return 0;
}
