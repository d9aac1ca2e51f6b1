// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/chat.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"

namespace tandem::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kShort =
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}{% if tools %} {{ tools | length }} tools{% endif %}";

Conversation of(const std::string& row) { return Conversation::from_json(Json::parse(row), "stdin:1"); }

class ChatDirectory : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(path_); }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void config(const Json& json) const { write_file(path_ + "/tokenizer_config.json", json.dump()); }
  std::string render(const std::string& file = "") const {
    return ChatTemplate::load(path_, file).render(of(R"({"messages": [{"role": "user", "content": "Hi"}]})"));
  }

  const std::string path_ = (std::filesystem::temp_directory_path() / "tandem_chat_test").string();
};

TEST_F(ChatDirectory, TheTemplateStandsInTheConfigItsListOrItsOwnFile) {
  const Json tokens = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  Json json = tokens;
  json["chat_template"] = kShort;
  config(json);
  EXPECT_EQ(render(), "<s>user: Hi</s>assistant:");
  json["chat_template"] = Json::array({{{"name", "tool_use"}, {"template", "no"}}, {{"name", "default"}, {"template", kShort}}});
  config(json);
  EXPECT_EQ(render(), "<s>user: Hi</s>assistant:");
  write_file(path_ + "/chat_template.jinja", "own {{ eos_token }}");
  EXPECT_EQ(render(), "own </s>");
  write_file(path_ + "/mine.jinja", "mine {{ bos_token }}");
  EXPECT_EQ(render(path_ + "/mine.jinja"), "mine <s>");
}

TEST_F(ChatDirectory, WithoutATemplateTheDirectoryIsNamed) {
  EXPECT_THROW(render(), UserError);
  config({{"bos_token", "<s>"}});
  EXPECT_THROW(render(), UserError);
  config({{"chat_template", 3}});
  EXPECT_THROW(render(), UserError);
  config({{"chat_template", "{{ nothing.at_all }}"}});
  try {
    render();
    ADD_FAILURE();
  } catch (const UserError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with(path_ + "/tokenizer_config.json chat_template:1: 'nothing' is undefined")) << e.what();
  }
}

TEST(ChatTemplate, VariablesOfTheConversationWinOverTheTokens) {
  const ChatTemplate chat(kShort, "here", {{"bos_token", "<s>"}, {"eos_token", "."}});
  EXPECT_EQ(chat.render(of(R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}], "add_generation_prompt": false,
                               "variables": {"bos_token": "B "}})")),
            "B user: a. 1 tools");
}

TEST(Conversation, WhatIsNoConversationIsNamed) {
  for (const char* row :
       {R"({})", R"({"messages": []})", R"({"messages": "Hi"})", R"({"messages": ["Hi"]})", R"({"messages": [{"content": "Hi"}]})",
        R"({"messages": [{"role": "user"}], "tools": {}})", R"({"messages": [{"role": "user"}], "variables": []})",
        R"({"messages": [{"role": "user"}], "add_generation_prompt": 1})"})
    EXPECT_THROW(of(row), UserError) << row;
}

}  // namespace
}  // namespace tandem::text
