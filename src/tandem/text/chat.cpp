// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/chat.h"

#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/json_file.h"

namespace tandem::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOtherWays =
    "texts in place of messages, as `tandem generate --prompt` has, or a template: --chat-template, or data.chat_template in a recipe";

std::string source_in(const nlohmann::json& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end()) throw UserError(path, "holds no chat template", kOtherWays);
  if (found->is_string()) return found->get<std::string>();
  // Several templates by name.
  for (const nlohmann::json& one : *found)
    if (one.is_object() && one.contains("name") && one["name"] == "default" && one.contains("template") && one["template"].is_string())
      return one["template"].get<std::string>();
  throw UserError(path, "\"chat_template\" is " + found->dump().substr(0, 60), "expected a text, or a list with one named default");
}

// bos_token and the like, each a text or the text's description.
void add_tokens(const nlohmann::json& config, Json& tokens) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string())
      tokens[key] = value.get<std::string>();
    else if (value.is_object() && value.contains("content") && value["content"].is_string())
      tokens[key] = value["content"].get<std::string>();
  }
}

Json tokens_of(const std::string& directory) {
  Json tokens = Json::object();
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string path = directory + "/" + name;
    if (std::filesystem::exists(path)) add_tokens(read_json_object(path), tokens);
  }
  return tokens;
}

// A null field is an absent one, as for transformers: APIs write "content": null beside calls, and a column of structs gives every
// message all keys. Further inside, as in the arguments of a call, null is a value.
void drop_nulls(Json& message) {
  for (auto field = message.begin(); message.is_object() && field != message.end();)
    field = field->is_null() ? message.erase(field) : std::next(field);
}

}  // namespace

Conversation Conversation::from_json(const Json& row, const std::string& where) {
  const auto wrong = [&](const char* field, const char* right) {
    return UserError(
        where,
        std::string("field `") + field + "` is " + exact_text(row[field]).substr(0, 60),
        std::string("expected ") + right);
  };
  Conversation out;
  if (!row.contains("messages"))
    throw UserError(where, "has no field `messages`", "expected {\"messages\": [{\"role\":, \"content\":}]}");
  out.messages = row["messages"];
  if (!out.messages.is_array() || out.messages.empty()) throw wrong("messages", "a list of {\"role\":, \"content\":}");
  for (Json& message : out.messages) drop_nulls(message);
  for (const Json& message : out.messages)
    if (!message.is_object() || !message.contains("role")) throw wrong("messages", "a \"role\" in each message");
  if (row.contains("tools")) out.tools = row["tools"];
  if (!out.tools.is_null() && !out.tools.is_array()) throw wrong("tools", "a list");
  if (row.contains("variables")) out.variables = row["variables"];
  if (!out.variables.is_object()) throw wrong("variables", "names and values");
  if (row.contains("add_generation_prompt")) {
    if (!row["add_generation_prompt"].is_boolean()) throw wrong("add_generation_prompt", "true or false");
    out.add_generation_prompt = row["add_generation_prompt"].get<bool>();
  }
  return out;
}

void require_text(const Json& message, const std::string& where) {
  if (message.contains("ids")) throw UserError(where, "a message has `ids`, an answer as it was sampled", "expected its text, `content`");
}

ChatTemplate::ChatTemplate(std::string_view source, const std::string& where, Json tokens)
    : template_(source, where), tokens_(std::move(tokens)) {}

ChatTemplate ChatTemplate::load(const std::string& directory, const std::string& file) {
  const std::string own = directory + "/chat_template.jinja", config = directory + "/tokenizer_config.json";
  if (!file.empty()) return {read_file(file), file, tokens_of(directory)};
  if (std::filesystem::exists(own)) return {read_file(own), own, tokens_of(directory)};
  if (!std::filesystem::exists(config)) throw UserError(directory, "holds no chat template", kOtherWays);
  return {source_in(read_json_object(config), config), config + " chat_template", tokens_of(directory)};
}

bool ChatTemplate::present_in(const std::string& directory) {
  const std::string config = directory + "/tokenizer_config.json";
  if (std::filesystem::exists(directory + "/chat_template.jinja")) return true;
  return std::filesystem::exists(config) && !read_json_object(config).value("chat_template", nlohmann::json()).is_null();
}

std::string ChatTemplate::render(const Conversation& conversation) const {
  Json variables = tokens_;
  variables["messages"] = conversation.messages;
  variables["tools"] = conversation.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = conversation.add_generation_prompt;
  for (const auto& [name, value] : conversation.variables.items()) variables[name] = value;
  return template_.render(variables);
}

std::vector<int32_t> encode_rendered(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  const auto bos = tokenizer.bos_id();
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) ids.erase(ids.begin());
  return ids;
}

}  // namespace tandem::text
