// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/turns.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kIds = "ids";
constexpr const char* kAnswerMark = "tandem-answer-b6f1a2-";  // nothing that a template or a message would write

struct Answer {
  size_t message;
  std::vector<int32_t> ids;
};

std::vector<int32_t> ids_of(const Json& list, int64_t vocab_size, const std::string& where) {
  const auto is_id = [&](const Json& id) { return id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_size; };
  if (!list.is_array() || list.empty() || !std::ranges::all_of(list, is_id))
    throw UserError(where, "`ids` of an answer are " + list.dump().substr(0, 60), join_text("a list of token ids, 0 to ", vocab_size - 1));
  return list.get<std::vector<int32_t>>();
}

std::string mark_of(size_t message) { return kAnswerMark + std::to_string(message); }

// Takes the sampled answers out: a mark stands for each.
std::vector<Answer> take_answers(Conversation& conversation, int64_t vocab_size, const std::string& where) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    Json& message = conversation.messages[i];
    if (!message.contains(kIds)) continue;
    if (message["role"] != "assistant")
      throw UserError(where, "message " + std::to_string(i + 1) + " has `ids` and is no answer", "`ids` in messages of the assistant");
    answers.push_back({i, ids_of(message[kIds], vocab_size, where)});
    // Whatever else the message says, such as calls of tools, is in the tokens.
    message = {{"role", "assistant"}, {"content", mark_of(i)}};
  }
  return answers;
}

// The first `count` messages as the template writes them.
std::string render_first(const ChatTemplate& chat, const Conversation& conversation, size_t count) {
  Conversation first = conversation;
  if (count < conversation.messages.size()) {
    first.messages.erase(first.messages.begin() + static_cast<std::ptrdiff_t>(count), first.messages.end());
    first.add_generation_prompt = true;
  }
  return chat.render(first);
}

// What the template wrote behind the answer that a mark stands for; nullopt unless it wrote the mark once.
std::optional<std::string> text_behind(const std::string& text, size_t message) {
  const std::string mark = mark_of(message);
  const size_t at = text.find(mark);
  if (at == std::string::npos || text.find(mark, at + 1) != std::string::npos) return std::nullopt;
  return text.substr(at + mark.size());
}

std::string required_text_behind(const std::string& text, size_t message, const std::string& where) {
  const auto behind = text_behind(text, message);
  if (!behind)
    throw UserError(where, "the chat template does not write the content of message " + std::to_string(message + 1) + " once, as it is",
                    "one that does, where answers are given as `ids`");
  return *behind;
}

}  // namespace

EncodedConversation encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat, const Conversation& conversation,
                                        const std::string& where) {
  Conversation marked = conversation;
  const std::vector<Answer> answers = take_answers(marked, tokenizer.vocab_size(), where);
  if (answers.empty()) {
    std::string text = chat.render(conversation);
    std::vector<int32_t> ids = encode_rendered(tokenizer, text);
    return {std::move(text), std::move(ids)};
  }
  std::vector<int32_t> ids = encode_rendered(tokenizer, render_first(chat, marked, answers[0].message));
  for (size_t i = 0; i < answers.size(); ++i) {
    ids.insert(ids.end(), answers[i].ids.begin(), answers[i].ids.end());
    const size_t end = i + 1 < answers.size() ? answers[i + 1].message : marked.messages.size();
    const std::vector<int32_t> behind =
        tokenizer.encode_part(required_text_behind(render_first(chat, marked, end), answers[i].message, where));
    // The token that ended the answer is written by the template as well.
    const bool ended = !behind.empty() && behind[0] == answers[i].ids.back() && tokenizer.is_special(behind[0]);
    ids.insert(ids.end(), behind.begin() + (ended ? 1 : 0), behind.end());
  }
  return {tokenizer.decode(ids), std::move(ids)};
}

Conversation as_text(const Tokenizer& tokenizer, Conversation conversation) {
  for (Json& message : conversation.messages) {
    if (!message.contains(kIds)) continue;
    const auto ids = message[kIds].get<std::vector<int32_t>>();
    message = {{"role", message["role"]}, {"content", tokenizer.decode(ids, true)}};
  }
  return conversation;
}

std::optional<int32_t> end_of_turn(const Tokenizer& tokenizer, const ChatTemplate& chat, Conversation conversation,
                                   std::span<const int32_t> ends) {
  const size_t answer = conversation.messages.size();
  conversation.messages.push_back({{"role", "assistant"}, {"content", mark_of(answer)}});
  conversation.add_generation_prompt = false;
  const auto behind = text_behind(chat.render(conversation), answer);
  if (!behind) return std::nullopt;
  const std::vector<int32_t> ids = tokenizer.encode_part(*behind);
  const auto end = std::ranges::find_first_of(ids, ends);
  return end == ids.end() ? std::nullopt : std::optional(*end);
}

}  // namespace tandem::text
