// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation as the text a model was trained to read. The chat template of its directory is rendered as Hugging Face does.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/jinja/template.h"
#include "tandem/text/tokenizer.h"

namespace tandem::text {

/// A conversation in the form of the Hugging Face libraries. Keys keep their order: templates print them.
struct Conversation {
  nlohmann::ordered_json messages;                                       ///< [{"role":, "content":, ...}]
  nlohmann::ordered_json tools;                                          ///< a list of JSON schemas, or null
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< more names for the template; they win over all others
  bool add_generation_prompt = true;                                     ///< ends with the head of the answer

  /// Reads {"messages":[], "tools":[], "add_generation_prompt":, "variables":{}}; only messages must be there. A
  /// field of a message that is null is left out.
  /// Errors: UserError naming `where` and the field.
  static Conversation from_json(const nlohmann::ordered_json& row, const std::string& where);
};

/// Ownership  a value.
/// Threads    const members from any thread.
/// Errors     UserError naming the file and line of the template for what it cannot do, and for messages that it refuses.
class ChatTemplate {
 public:
  /// The template of a model directory: chat_template.jinja, or chat_template of tokenizer_config.json. `file`, if not empty,
  /// is taken instead. Either sees the special tokens of the directory (bos_token, eos_token ...).
  static ChatTemplate load(const std::string& directory, const std::string& file = "");
  /// Whether the directory has one.
  static bool present_in(const std::string& directory);
  /// From the text of a template; `where` is named in errors. `tokens` are names the template may use.
  ChatTemplate(std::string_view source, const std::string& where, nlohmann::ordered_json tokens = nlohmann::ordered_json::object());

  std::string render(const Conversation& conversation) const;

 private:
  jinja::Template template_;
  nlohmann::ordered_json tokens_;
};

/// Errors: UserError if a message is an answer in token ids (turns.h), for who needs its text.
void require_text(const nlohmann::ordered_json& message, const std::string& where);

/// The ids of a rendered text. A template that writes the BOS itself keeps one of it where the tokenizer puts another before it.
std::vector<int32_t> encode_rendered(const Tokenizer& tokenizer, std::string_view text);

}  // namespace tandem::text
