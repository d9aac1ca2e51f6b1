// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation as the text a model was trained to read. One form is known: ChatML, as Qwen2 and Qwen2.5 write it.

#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

struct ChatTurn {
  std::string role;     ///< system, user or assistant
  std::string content;
};

/// Ownership  a value.
/// Threads    const members from any thread.
/// Errors     UserError naming the directory, or the turn, that cannot be used.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja, or chat_template of tokenizer_config.json. Errors: also for a template of another form.
  static ChatTemplate load(const std::string& directory);
  /// From the text of a template; `where` is named in errors.
  ChatTemplate(std::string_view source, const std::string& where);

  /// The turns, the template's own system turn before them unless they begin with one, and the head of the answer.
  std::string render(const std::vector<ChatTurn>& turns, bool add_generation_prompt = true) const;

 private:
  std::string system_;  ///< text of the system turn where the conversation has none; "" for no such turn
};

}  // namespace tandem::text
