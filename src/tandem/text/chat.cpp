// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/chat.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/text/json_file.h"

namespace tandem::text {
namespace {

constexpr const char* kKnown = "expected ChatML as Qwen2 and Qwen2.5 write it; give `prompt` or `prompt_ids`";

// The template without blanks, and message['role'] as message.role: versions differ in both.
std::string compact(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (std::isspace(static_cast<unsigned char>(source[i]))) continue;
    if (const size_t close = source.find("']", i); source.substr(i, 2) == "['" && close != std::string_view::npos) {
      (out += '.').append(source.substr(i + 2, close - i - 2));
      i = close + 1;
    } else {
      out += source[i];
    }
  }
  return out;
}

// What a literal of the template says, from `at` to its closing quote; "" if it has none.
std::string literal(std::string_view source, size_t at, char quote) {
  std::string text;
  for (; at < source.size() && source[at] != quote; ++at) {
    if (source[at] == '\\' && at + 1 < source.size())
      text += source[++at] == 'n' ? '\n' : source[at];
    else
      text += source[at];
  }
  return at < source.size() ? text : "";
}

// The text between `<|im_start|>system\n` and `<|im_end|>` where both stand in one literal of the template.
std::string default_system(std::string_view source) {
  constexpr std::string_view kOpen = "<|im_start|>system\\n", kClose = "<|im_end|>";
  for (size_t at = 0; (at = source.find(kOpen, at)) != std::string_view::npos; at += kOpen.size()) {
    if (at == 0 || (source[at - 1] != '\'' && source[at - 1] != '"')) continue;
    const std::string text = literal(source, at + kOpen.size(), source[at - 1]);
    if (const size_t end = text.find(kClose); end != std::string::npos) return text.substr(0, end);
  }
  return "";
}

std::string source_in(const nlohmann::json& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end()) throw UserError(path, "holds no chat template", kKnown);
  if (found->is_string()) return found->get<std::string>();
  // Several templates by name.
  for (const nlohmann::json& one : *found)
    if (one.is_object() && one.contains("name") && one["name"] == "default" && one.contains("template") && one["template"].is_string())
      return one["template"].get<std::string>();
  throw UserError(path, "\"chat_template\" is " + found->dump().substr(0, 60), "expected a text, or a list with one named default");
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& where) : system_(default_system(source)) {
  if (compact(source).find("'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'") == std::string::npos)
    throw UserError(where, "the chat template is of a form that is not supported", kKnown);
}

ChatTemplate ChatTemplate::load(const std::string& directory) {
  const std::string own = directory + "/chat_template.jinja", config = directory + "/tokenizer_config.json";
  if (std::filesystem::exists(own)) return {read_file(own), own};
  return {source_in(read_json_object(config), config), config};
}

std::string ChatTemplate::render(const std::vector<ChatTurn>& turns, bool add_generation_prompt) const {
  if (turns.empty()) throw UserError("messages", "there are none", "expected at least one turn");
  std::string text;
  const auto add = [&](const std::string& role, const std::string& content) {
    text += "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
  };
  if (turns[0].role != "system" && !system_.empty()) add("system", system_);
  for (const ChatTurn& turn : turns) {
    if (turn.role != "system" && turn.role != "user" && turn.role != "assistant")
      throw UserError("messages", "role `" + turn.role + "` is not supported", "expected system, user or assistant");
    add(turn.role, turn.content);
  }
  return add_generation_prompt ? text + "<|im_start|>assistant\n" : text;
}

}  // namespace tandem::text
