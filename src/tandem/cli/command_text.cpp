// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/command_text.h"

#include <functional>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tandem/base/error.h"
#include "tandem/reward/graders.h"
#include "tandem/reward/rule.h"
#include "tandem/text/tokenizer.h"

namespace tandem::cli {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

void each_line(std::istream& in, std::ostream& out, const std::function<ordered_json(const json&, const std::string&)>& answer) {
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = "stdin:" + std::to_string(number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json row = json::parse(line, nullptr, false);
    if (!row.is_object()) throw UserError(where, "is not a JSON object", "expected one JSON object per line");
    try {
      out << answer(row, where).dump() << "\n" << std::flush;
    } catch (const UserError& e) {
      const std::string message = e.what();
      if (message.starts_with(where)) throw;
      throw UserError(where, message, "the lines before it are answered");
    }
    if (!out) throw PeerError("stdout: cannot be written after line " + std::to_string(number));
  }
}

const json& field(const json& row, const char* name, const std::string& where) {
  const auto found = row.find(name);
  if (found == row.end())
    throw UserError(where, std::string("has no field `") + name + "`", std::string("expected {\"") + name + "\": ...}");
  return *found;
}

std::string text_field(const json& row, const char* name, const std::string& where) {
  const json& value = field(row, name, where);
  if (!value.is_string()) throw UserError(where, std::string("field `") + name + "` is " + value.dump().substr(0, 40), "expected a text");
  return value.get<std::string>();
}

std::vector<int32_t> ids_field(const json& row, const std::string& where) {
  const json& value = field(row, "ids", where);
  std::vector<int32_t> ids;
  if (!value.is_array()) throw UserError(where, "field `ids` is not a list", "expected a list of token ids");
  for (const json& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw UserError(where, "id " + id.dump() + " is no token id", "expected non-negative integers");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string gold_field(const json& row, const std::string& where) {
  if (!row.contains("gold")) return "";
  const json& gold = row["gold"];
  if (gold.is_string()) return gold.get<std::string>();
  if (gold.is_number() || gold.is_boolean()) return gold.dump();
  throw UserError(where, "field `gold` is " + gold.dump().substr(0, 40), "expected a text or a number");
}

}  // namespace

void tokenize(const std::string& model, bool plain, std::istream& in, std::ostream& out) {
  const auto tokenizer = text::Tokenizer::load(model);
  each_line(in, out, [&](const json& row, const std::string& where) {
    return ordered_json{
        {"ids", tokenizer.encode(text_field(row, "text", where), plain ? text::Special::kPlain : text::Special::kRecognise)}};
  });
}

void detokenize(const std::string& model, std::istream& in, std::ostream& out) {
  const auto tokenizer = text::Tokenizer::load(model);
  each_line(in, out, [&](const json& row, const std::string& where) {
    return ordered_json{{"text", tokenizer.decode(ids_field(row, where))}};
  });
}

void grade(const std::string& spec, std::istream& in, std::ostream& out) {
  const auto rule = reward::make_rule(spec);
  each_line(in, out, [&](const json& row, const std::string& where) {
    reward::Answer answer;
    answer.response = text_field(row,
                                 row.contains("response")     ? "response"
                                 : row.contains("prediction") ? "prediction"
                                                              : "response",
                                 where);
    answer.gold = gold_field(row, where);
    // Without a count, words stand for tokens, so that the rules of length have something to go by.
    answer.response_tokens = row.contains("response_tokens") && row["response_tokens"].is_number_integer()
                                 ? row["response_tokens"].get<int64_t>()
                                 : static_cast<int64_t>(reward::words_as_items(answer.response).size());
    const reward::Score score = rule->score(answer);
    ordered_json parts = ordered_json::object();
    for (const auto& [name, value] : score.parts) parts[name] = value;
    return ordered_json{{"score", score.score}, {"parts", parts}, {"extracted", score.extracted}};
  });
}

}  // namespace tandem::cli
