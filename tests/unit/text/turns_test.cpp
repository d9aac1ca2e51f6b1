// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/turns.h"

#include <gtest/gtest.h>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

Tokenizer mini() {
  const nlohmann::json mini = read_json_object(std::string(TANDEM_SOURCE_DIR) + "/tests/oracles/tokenizer/qwen2_mini.json");
  nlohmann::json added = nlohmann::json::object();
  for (const auto& [content, id] : mini["added_tokens"].items())
    added[std::to_string(id.get<int>())] = {{"content", content}, {"special", true}};
  added["272"] = {{"content", "<|im_end|>"}, {"special", true}};
  return {qwen2_spec(mini["vocab"], mini["merges"], {{{"added_tokens_decoder", added}, {"eos_token", "<|endoftext|>"}}}, "mini"), "mini"};
}

const Tokenizer kTokenizer = mini();

// Letter by letter, as no tokenizer would encode it.
std::vector<int32_t> letters(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(kTokenizer.encode(std::string(1, c)).at(0));
  return ids;
}

Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }
Json sampled(const std::vector<int32_t>& ids) { return {{"role", "assistant"}, {"ids", ids}}; }
Json answer(const std::string& text) { return {{"role", "assistant"}, {"content", text}}; }

EncodedConversation encode(const Json& messages, const char* source = kChatMl) {
  return encode_conversation(kTokenizer, ChatTemplate(source, "test"), Conversation::from_json({{"messages", messages}}, "here"), "here");
}

TEST(Turns, WhatWasSampledIsNeverEncodedAnew) {
  const std::vector<int32_t> first = letters(" low low"), second = letters("and then");
  ASSERT_NE(first, kTokenizer.encode(" low low"));
  const EncodedConversation one = encode(Json::array({user("What is this?")}));
  EXPECT_EQ(one.ids, kTokenizer.encode("<|im_start|>user\nWhat is this?<|im_end|>\n<|im_start|>assistant\n"));
  const EncodedConversation two = encode({user("What is this?"), sampled(first), user("And that?")});
  const EncodedConversation three = encode({user("What is this?"), sampled(first), user("And that?"), sampled(second), user("Well")});

  // A turn begins with the ids of the turn before it and the answer.
  std::vector<int32_t> history = one.ids;
  history.insert(history.end(), first.begin(), first.end());
  ASSERT_GT(two.ids.size(), history.size());
  EXPECT_TRUE(std::equal(history.begin(), history.end(), two.ids.begin()));
  history = two.ids;
  history.insert(history.end(), second.begin(), second.end());
  ASSERT_GT(three.ids.size(), history.size());
  EXPECT_TRUE(std::equal(history.begin(), history.end(), three.ids.begin()));

  const std::string text = encode({user("What is this?"), answer(" low low"), user("And that?"), answer("and then"), user("Well")}).text;
  EXPECT_EQ(kTokenizer.decode(three.ids), text);
  EXPECT_EQ(three.text, text);
}

TEST(Turns, TheTokenThatEndedAnAnswerStandsThereOnce) {
  std::vector<int32_t> stopped = letters(" low low");
  const EncodedConversation cut = encode({user("Hi"), sampled(stopped), user("And?")});
  stopped.push_back(*kTokenizer.token_id("<|im_end|>"));
  EXPECT_EQ(encode({user("Hi"), sampled(stopped), user("And?")}).ids, cut.ids);
  stopped.back() = *kTokenizer.token_id("<|endoftext|>");  // another end than the template's stays
  EXPECT_EQ(encode({user("Hi"), sampled(stopped), user("And?")}).ids.size(), cut.ids.size() + 1);
}

TEST(Turns, AnAnswerWithoutIdsIsText) {
  const EncodedConversation mixed = encode({user("Hi"), answer(" low low"), user("And?"), sampled(letters("so")), user("Well")});
  EXPECT_EQ(kTokenizer.decode(mixed.ids), encode({user("Hi"), answer(" low low"), user("And?"), answer("so"), user("Well")}).text);
}

TEST(Turns, SampledAnswersAreTextForOthers) {
  std::vector<int32_t> stopped = letters("so");
  stopped.push_back(*kTokenizer.token_id("<|im_end|>"));
  const Json messages = {user("Hi"), sampled(stopped), user("And?")};
  const Conversation texts = as_text(kTokenizer, Conversation::from_json({{"messages", messages}}, "here"));
  EXPECT_EQ(texts.messages, (Json{user("Hi"), answer("so"), user("And?")}));
}

TEST(Turns, TheTemplateSaysWhichTokenEndsATurn) {
  const Conversation talk = Conversation::from_json({{"messages", Json::array({user("What is this?")})}}, "here");
  const int32_t turn = *kTokenizer.token_id("<|im_end|>"), eos = *kTokenizer.token_id("<|endoftext|>");
  const auto end = [&](const std::string& source, std::vector<int32_t> ends) {
    return end_of_turn(kTokenizer, ChatTemplate(source, "test"), talk, ends);
  };
  EXPECT_EQ(end(kChatMl, {eos, turn}), turn);
  EXPECT_EQ(end(kChatMl, {eos}), std::nullopt);
  EXPECT_EQ(end(std::string(kChatMl) + "<|endoftext|>", {eos, turn}), turn);
  EXPECT_EQ(end("{{ messages[0]['content'] }}<|im_end|>", {turn}), std::nullopt) << "it drops the answer";
}

TEST(Turns, WhatCannotStandAsItWasIsAnError) {
  EXPECT_THROW(encode({user("Hi"), sampled({}), user("And?")}), UserError);
  EXPECT_THROW(encode({user("Hi"), sampled({1 << 30}), user("And?")}), UserError);
  EXPECT_THROW(encode({user("Hi"), {{"role", "assistant"}, {"ids", "text"}}}), UserError);
  EXPECT_THROW(encode(Json::array({{{"role", "user"}, {"content", "Hi"}, {"ids", {1}}}})), UserError);
  const Json messages = {user("Hi"), sampled(letters("so")), user("And?")};
  EXPECT_THROW(encode(messages, "{{ messages[0]['content'] }}"), UserError);                                          // drops it
  EXPECT_THROW(encode(messages, "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"), UserError);         // changes it
  EXPECT_THROW(encode(messages, "{% for m in messages %}{{ m['content'] + m['content'] }}{% endfor %}"), UserError);  // says it twice
}

}  // namespace
}  // namespace tandem::text
