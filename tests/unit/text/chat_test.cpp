// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/chat.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/text/json_file.h"

namespace tandem::text {
namespace {

using nlohmann::json;

// The template of Qwen2-0.5B-Instruct, whole.
constexpr const char* kQwen2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful "
    "assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% "
    "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(ChatTemplate, TheTemplatesOwnSystemTurnStandsInForAMissingOne) {
  const ChatTemplate chat(kQwen2, "here");
  EXPECT_EQ(chat.render({{"user", "Hi"}}),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.render({{"system", "Be brief."}, {"user", "Hi"}}, false),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, TheSystemTurnIsReadWithItsEscapes) {
  std::string source = kQwen2;
  const std::string plain = "You are a helpful assistant.";
  source.replace(source.find(plain), plain.size(), "It\\'s within \\\\boxed{}.\\nSo.");
  const std::string text = ChatTemplate(source, "here").render({{"user", "Hi"}});
  EXPECT_TRUE(text.starts_with("<|im_start|>system\nIt's within \\boxed{}.\nSo.<|im_end|>")) << text;
}

TEST(ChatTemplate, AnotherFormOrRoleIsRefused) {
  EXPECT_THROW(ChatTemplate("{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]", "here"), UserError);
  EXPECT_THROW(ChatTemplate(kQwen2, "here").render({{"tool", "5"}}), UserError);
  EXPECT_THROW(ChatTemplate(kQwen2, "here").render({}), UserError);
  EXPECT_THROW(ChatTemplate::load("nowhere"), UserError);
}

// Expected texts by transformers. Conversations with tools are not this form.
TEST(ChatTemplate, RendersAsTransformersDoes) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/../shared/oracles/chat/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no ../shared";
  int checked = 0;
  std::ifstream in(folder + "rendered.jsonl");
  for (std::string line; std::getline(in, line);) {
    const json row = json::parse(line);
    if (!row["template_file"].get<std::string>().starts_with("qwen2") || !row.contains("text") || !row["tools"].is_null()) continue;
    std::vector<ChatTurn> turns;
    bool plain = true;
    for (const json& message : row["messages"]) {
      plain = plain && message["role"] != "tool" && !message.contains("tool_calls");
      if (plain) turns.push_back({message["role"], message["content"]});
    }
    if (!plain) continue;
    const std::string file = folder + "templates/" + row["template_file"].get<std::string>();
    EXPECT_EQ(ChatTemplate(read_file(file), file).render(turns, row["add_generation_prompt"]), row["text"]) << line;
    ++checked;
  }
  EXPECT_GT(checked, 20);
  for (const char* other : {"qwen3.jinja", "llama3_2.jinja", "deepseekv3.jinja"})
    EXPECT_THROW(ChatTemplate(read_file(folder + "templates/" + other), other), UserError);
}

}  // namespace
}  // namespace tandem::text
