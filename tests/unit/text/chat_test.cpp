// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/chat.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/json_file.h"
#include "tests/temporary_folder.h"

namespace tandem::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kShort =
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}{% if tools %} {{ tools | length }} tools{% endif %}";

Conversation of(const std::string& row) { return Conversation::from_json(parse_exact(row).value, "stdin:1"); }

class ChatDirectory : public ::testing::Test {
 protected:
  void config(const Json& json) const { write_file(path_ + "/tokenizer_config.json", json.dump()); }
  std::string render(const std::string& file = "") const {
    return ChatTemplate::load(path_, file).render(of(R"({"messages": [{"role": "user", "content": "Hi"}]})"));
  }

  const test::TemporaryFolder folder_{"chat"};
  const std::string path_ = folder_.path();
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

// Expected texts of both are those of transformers 5.24.
constexpr const char* kFields =
    "{% for m in messages %}{{ m.role }}{% if m.name is defined %}({{ m.name }}){% endif %}:{{ m.content }}{% if m.tool_calls %}"
    "{{ m.tool_calls | tojson }}{% endif %}{% if 'x' in m %}{{ m.x }}{% endif %};{% endfor %}";

std::string fields_of(const std::string& message) {
  return ChatTemplate(kFields, "here").render(of(R"({"messages": [)" + message + "]}"));
}

TEST(Conversation, ANullFieldOfAMessageIsAbsentAndOneFurtherInsideIsNot) {
  EXPECT_EQ(fields_of(R"({"role": "assistant", "content": null})"), "assistant:;");
  EXPECT_EQ(fields_of(R"({"role": "user", "content": "a", "name": null, "tool_calls": null, "tool_call_id": null})"), "user:a;");
  EXPECT_EQ(fields_of(R"({"x": null, "role": "user", "content": "a"})"), "user:a;");
  EXPECT_EQ(fields_of(R"({"role": "user", "content": "a", "ids": null})"), "user:a;") << "no answer as it was sampled";
  EXPECT_EQ(fields_of(R"({"role": "assistant", "content": null, "tool_calls": [{"id": null, "function": {"arguments": {"a": null}}}]})"),
            R"(assistant:[{"id": null, "function": {"arguments": {"a": null}}}];)");
  EXPECT_EQ(fields_of(R"({"role": "user", "content": [{"type": "text", "text": null}]})"), "user:[{'type': 'text', 'text': None}];");
  EXPECT_EQ(fields_of(R"({"role": "user", "content": "a", "x": [null]})"), "user:a[None];");
  EXPECT_THROW(fields_of(R"({"role": null, "content": "a"})"), UserError);
}

TEST(Conversation, AnIntegerOfAnyLengthIsWrittenWithAllItsDigits) {
  const auto x = [](const std::string& number) { return fields_of(R"({"role": "user", "content": "", "x": )" + number + "}"); };
  for (const char* number : {"12345678901234567890123", "-12345678901234567890123", "18446744073709551615", "9223372036854775808",
                             "100000000000000000000", "-9223372036854775809"})
    EXPECT_EQ(x(number), std::string("user:") + number + ";");
  EXPECT_EQ(x(R"({"y": 12345678901234567890123, "z": 3.14159265358979323846, "e": 1e-400, "o": 1.0})"),
            "user:{'y': 12345678901234567890123, 'z': 3.141592653589793, 'e': 0.0, 'o': 1.0};");
  const auto rendered = [](const std::string& source) {
    const char* row = R"({"messages": [{"role": "a", "n": 12345678901234567890123}], "variables": {"n": 12345678901234567890123}})";
    return ChatTemplate(source, "here").render(of(row));
  };
  EXPECT_EQ(rendered("{{ n is integer }} {{ n is number }} {{ n is string }} {{ n == messages[0].n }} {{ n | string | length }} "
                     "{{ n | int }} {{ messages | tojson }} {{ n | float }} {{ n ~ '!' }}"),
            "True True False True 23 12345678901234567890123 [{\"role\": \"a\", \"n\": 12345678901234567890123}] 1.2345678901234568e+22 "
            "12345678901234567890123!");
  EXPECT_THROW(rendered("{{ n + 1 }}"), UserError) << "refused, not rounded";
  EXPECT_THROW(rendered("{{ n < 1 }}"), UserError);
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
