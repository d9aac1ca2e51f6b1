// SPDX-License-Identifier: Apache-2.0
#include "tandem/cli/command/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "tandem/base/error.h"
#include "tandem/cli/json_lines.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::cli {
namespace {

// A model may say anything, and what it says is read in a terminal.
TEST(JsonLines, HoldNoBytesThatATerminalObeysAndStayTheSameDocument) {
  const nlohmann::ordered_json said = {{"text", "\x1b[2J\u009b31m \x7f \u202e fine: \u00e9\n\t"}, {"\u009d0;title", 1}};
  std::ostringstream out;
  write_line(out, said);
  const std::string line = out.str();
  EXPECT_EQ(line, R"({"text":"\u001b[2J\u009b31m \u007f \u202e fine: )" "\u00e9" R"(\n\t","\u009d0;title":1})" "\n");
  EXPECT_EQ(nlohmann::ordered_json::parse(line), said);
}

TEST(CommandText, TokenizeAndDetokenizeAreInverse) {
  const std::string folder = (std::filesystem::temp_directory_path() / ("tandem_cli_" + std::to_string(::getpid()))).string();
  text::write_char_tokenizer(folder, "0123456789+=<>eos", {"<pad>", "<eos>"});
  std::istringstream in("{\"text\": \"1+2=<eos>\"}\n\n{\"text\": \"\"}\n"), again;
  std::ostringstream ids, texts, plain;
  tokenize(folder, false, in, ids);
  EXPECT_EQ(ids.str(), "{\"ids\":[3,12,4,13,1]}\n{\"ids\":[]}\n");
  again.str(ids.str());
  detokenize(folder, again, texts);
  EXPECT_EQ(texts.str(), "{\"text\":\"1+2=<eos>\"}\n{\"text\":\"\"}\n");
  std::istringstream once("{\"text\": \"<eos>\"}");
  tokenize(folder, true, once, plain);
  EXPECT_EQ(plain.str(), "{\"ids\":[14,16,17,18,15]}\n");
  std::filesystem::remove_all(folder);
}

TEST(CommandText, GradeAnswersEachLine) {
  std::istringstream in("{\"response\": \"so 7\", \"gold\": 7}\n{\"prediction\": \"8\", \"gold\": \"7\"}\n");
  std::ostringstream out;
  grade("number", in, out);
  EXPECT_EQ(
      out.str(),
      "{\"score\":1.0,\"parts\":{\"number\":1.0},\"extracted\":\"7\"}\n{\"score\":0.0,\"parts\":{\"number\":0.0},\"extracted\":\"8\"}\n");
}

TEST(CommandText, GradeTakesTheChoicesOfALine) {
  std::istringstream in("{\"response\": \"It is (B).\", \"gold\": 1, \"choices\": [\"red\", \"blue\"]}\n"
                        "{\"response\": \"It is (B).\", \"gold\": \"Red\", \"choices\": [\"red\", \"blue\"]}\n");
  std::ostringstream out;
  grade("choice", in, out);
  EXPECT_EQ(
      out.str(),
      "{\"score\":1.0,\"parts\":{\"choice\":1.0},\"extracted\":\"B\"}\n{\"score\":0.0,\"parts\":{\"choice\":0.0},\"extracted\":\"B\"}\n");
  std::istringstream wrong("{\"response\": \"B\", \"gold\": 1, \"choices\": {\"A\": 1}}");
  EXPECT_THROW(grade("choice", wrong, out), UserError);
}

TEST(CommandText, GradeByAModelReadsThePromptAsTextOrMessages) {
  std::istringstream in("{\"prompt\": \"6*7=\", \"response\": \"42\"}\n"
                        "{\"prompt\": [{\"role\": \"user\", \"content\": \"6*7=\"}], \"response\": \"42\"}\n"
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"6*7=\"}], \"response\": \"42\"}\n");
  std::ostringstream out;
  grade("model(model=" + std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/qwen2_score1)", in, out);
  std::istringstream answers(out.str());
  std::string text, list, messages;
  std::getline(answers, text), std::getline(answers, list), std::getline(answers, messages);
  EXPECT_TRUE(text.starts_with("{\"score\":1.9679")) << text << ": as transformers, answers.jsonl";
  EXPECT_EQ(list, messages);
  EXPECT_NE(text, list);
}

TEST(CommandText, AWrongLineIsNamedAfterTheRightOnes) {
  std::istringstream in("{\"response\": \"7\", \"gold\": \"7\"}\nnot json\n");
  std::ostringstream out;
  try {
    grade("exact", in, out);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("stdin:2"), std::string::npos);
  }
  EXPECT_NE(out.str().find("\"score\":1.0"), std::string::npos);
  std::istringstream missing("{\"gold\": \"7\"}");
  EXPECT_THROW(grade("exact", missing, out), UserError);
}

TEST(CommandText, ALineWithoutGoldIsNamedUnlessTheRuleNeedsNone) {
  std::ostringstream out;
  std::istringstream in("{\"response\": \"7\", \"gold\": \"7\"}\n{\"response\": \"\"}\n");
  try {
    grade("exact", in, out);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()).rfind("stdin:2: has no field `gold`", 0), 0u) << e.what();
  }
  std::istringstream format("{\"response\": \"{}\"}\n");
  EXPECT_NO_THROW(grade("json", format, out));
}

}  // namespace
}  // namespace tandem::cli
