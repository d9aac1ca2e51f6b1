// SPDX-License-Identifier: Apache-2.0
// What users bring: Parquet, messages, dotted columns, mixes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "../../temporary_folder.h"
#include "tandem/base/error.h"
#include "../../error_text.h"
#include "tandem/data/source.h"

namespace tandem::data {
namespace {

using test::error_of;

using Json = nlohmann::ordered_json;

const std::string kRows = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/data/rows.parquet";

std::string record_file(const std::string& name, const std::string& content) {
  static const test::TemporaryFolder folder("record_columns_");
  std::ofstream(folder / name, std::ios::binary) << content;
  return folder / name;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Options verl() {
  Options options;
  options.prompt_column = "prompt";
  options.answer_column = "reward_model.ground_truth";
  options.source_column = "data_source";
  options.curriculum_column = "level";
  return options;
}

// The file is written by pyarrow: tests/fixtures/data/make_parquet.py.
TEST(Parquet, RowsInVerlsFormAreRead) {
  const auto source = open_records(kRows, verl(), 0);
  ASSERT_EQ(source->size(), 3);
  const Prompt second = source->at(1);
  EXPECT_EQ(second.text, "");
  EXPECT_EQ(second.messages, R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"Größe <a>?"}]})");
  EXPECT_EQ(second.answer, "x");
  EXPECT_EQ(second.data_source, "add");
  EXPECT_EQ(second.rank, -1.0);
  EXPECT_EQ(source->at(2).data_source, "code");
  EXPECT_EQ(open_records(kRows, verl(), 2)->size(), 2);
}

TEST(Parquet, TextsNumbersAndNestedFieldsAreColumnsToo) {
  Options options;
  options.prompt_column = "plain";
  options.answer_column = "extra_info.index";
  EXPECT_EQ(open_records(kRows, options, 0)->at(2).answer, "2");
  options.answer_column = "extra_info.tests";
  EXPECT_EQ(open_records(kRows, options, 0)->at(0).answer, R"(["a",null])");
  options.answer_column = "small";  // null in the second row, which cannot be graded
  EXPECT_EQ(open_records(kRows, options, 0)->size(), 2);
}

TEST(Parquet, DecimalsKeepAllTheirDigits) {
  Options options;
  options.prompt_column = "plain";
  const auto answers = [&](const char* column) {
    options.answer_column = column;
    const auto source = open_records(kRows, options, 0);
    return std::vector<std::string>{source->at(0).answer, source->at(1).answer, source->at(2).answer};
  };
  EXPECT_EQ(answers("whole"), (std::vector<std::string>{"123456789012345678901234567890", "-7", "0"}));
  EXPECT_EQ(answers("cents"), (std::vector<std::string>{"12345678901234567890123456789012345678901234567890.25", "0.10", "-3.50"}));
  EXPECT_TRUE(says(open_records(kRows, options, 0)->at(0).columns, R"("whole":123456789012345678901234567890,)"));
}

TEST(Parquet, AFileIsOneWhateverItsNameSays) {
  std::ifstream in(kRows, std::ios::binary);
  const std::string path = record_file("rows.jsonl", {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
  EXPECT_EQ(open_records(path, verl(), 0)->at(1).answer, "x");
  const std::string lines = record_file("lines.parquet", "{}");
  EXPECT_TRUE(says(error_of([&] { open_records(lines, verl(), 0); }), "lines.parquet: is no readable Parquet file"));
}

TEST(Parquet, AnErrorNamesFileRowAndColumn) {
  const auto error = [](const Options& options) { return error_of([&] { open_records(kRows, options, 0); }); };
  Options options = verl();
  options.answer_column = "reward_model.groundtruth";
  EXPECT_TRUE(says(error(options), "rows.parquet row 1: has no field `reward_model.groundtruth`")) << error(options);
  EXPECT_TRUE(says(error(options), "the nearest is `reward_model.ground_truth`")) << error(options);
  options.prompt_column = "nothing";
  options.answer_column = options.source_column = options.curriculum_column = "";
  EXPECT_TRUE(says(error(options), "row 1: has no field `nothing`")) << error(options);
  options = verl();
  options.columns = {"*", "day"};
  EXPECT_TRUE(says(error(options), "column `day` holds date32")) << error(options);
  options = verl();
  options.curriculum_column = "plain";
  EXPECT_TRUE(says(error(options), "row 1: field `plain` is \"1+1?\" (expected a number)")) << error(options);
}

TEST(Parquet, OtherColumnsAreKeptForRewardsAsTheOptionSays) {
  Options options = verl();
  const auto columns = [&] { return Json::parse(open_records(kRows, options, 0)->at(2).columns); };
  EXPECT_EQ(columns()["extra_info"], Json::parse(R"({"index": 2, "split": "train", "tests": ["a", null]})"));
  EXPECT_EQ(columns()["plain"], "third");
  EXPECT_EQ(columns()["prompt"].back()["role"], "user") << "the question, as the row has it";
  EXPECT_FALSE(columns().contains("day")) << "dates have no form in JSON, and nobody asked for it";
  options.columns = {"extra_info.index", "small", "absent"};
  EXPECT_EQ(columns()["extra_info.index"], 2);
  EXPECT_EQ(columns()["small"], 3);
  EXPECT_EQ(columns()["prompt"].back()["role"], "user") << "the question needs no name";
  EXPECT_EQ(columns().size(), 3u);
  options.columns = {};
  EXPECT_EQ(open_records(kRows, options, 0)->at(2).columns, "");
}

TEST(Records, RowsMayHaveNoAnswer) {
  Options options;
  options.answer_column = kNoAnswer;
  const std::string path = record_file("bare.jsonl", R"({"question": "q", "words": ["a"]})");
  EXPECT_EQ(open_records(path, options, 0)->at(0).answer, "");
  EXPECT_EQ(open_records(path, options, 0)->at(0).columns, R"({"question":"q","words":["a"]})");
  options.answer_column = "answer";
  EXPECT_TRUE(says(error_of([&] { open_records(path, options, 0); }), "the latter to none for rows without answers"));
}

TEST(Parquet, BrokenFilesAreRefused) {
  std::ifstream in(kRows, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto refused = [](const std::string& path) { return error_of([&] { open_records(path, verl(), 0); }); };
  EXPECT_TRUE(says(refused(record_file("a.parquet", "")), "is no readable Parquet file"));
  EXPECT_TRUE(says(refused(record_file("b.parquet", bytes.substr(0, bytes.size() / 2))), "is no readable Parquet file"));
  EXPECT_TRUE(says(refused("nowhere.parquet"), "cannot be read"));
  // A byte changed anywhere: an error or other rows, but no crash.
  int num_refused = 0;
  for (size_t at = 0; at < bytes.size(); at += 7) {
    std::string broken = bytes;
    broken[at] = static_cast<char>(~broken[at]);
    num_refused += refused(record_file("c.parquet", broken)).empty() ? 0 : 1;
  }
  EXPECT_GT(num_refused, 0);
}

TEST(Messages, TheLastOfTheAssistantIsTheAnswerWhereNoColumnHoldsIt) {
  Options options;
  options.prompt_column = "messages";
  options.answer_column = "";
  const std::string row = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const auto source = open_records(record_file("m.jsonl", row), options, 0);
  EXPECT_EQ(source->at(0).messages, R"({"messages":[{"role":"user","content":"q"}]})");
  EXPECT_EQ(source->at(0).answer, "a");
  const std::string open_end = R"({"messages": [{"role": "user", "content": "q"}]})";
  EXPECT_TRUE(says(error_of([&] { open_records(record_file("n.jsonl", open_end), options, 0); }), "n.jsonl:1: field `messages`"));
  options.answer_column = "answer";
  const std::string no_role = R"({"messages": [{"content": "q"}], "answer": 1})";
  EXPECT_TRUE(says(error_of([&] { open_records(record_file("o.jsonl", no_role), options, 0); }), "expected a text, or messages"));
}

TEST(Messages, AQuestionBecomesTheMessageOfAUser) {
  Options options;
  options.as_chat = true;
  options.system_message = "Be brief.";
  options.prompt_template = "{prompt} Think.";
  options.tools_column = "tools";
  const auto source = open_records(record_file("c.jsonl", R"({"question": "q", "answer": "a", "tools": [{"name": "f"}]})"), options, 0);
  EXPECT_EQ(source->at(0).messages,
            R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"q Think."}],"tools":[{"name":"f"}]})");
}

TEST(Messages, ToolsAreAListOrItsText) {
  Options options;
  options.as_chat = true;
  options.tools_column = "tools";
  const auto first = [&](const std::string& tools) {
    return open_records(record_file("t.jsonl", R"({"question": "q", "answer": "a", "tools": )" + tools + "}"), options, 0)->at(0).messages;
  };
  EXPECT_TRUE(says(first(R"("[{\"name\": \"f\"}]")"), R"("tools":[{"name":"f"}])"));
  EXPECT_TRUE(says(first("null"), R"("tools":null)"));
  for (const char* wrong : {R"("[1")", R"("x")", "{}", "3"})
    EXPECT_TRUE(says(error_of([&] { first(wrong); }), "t.jsonl:1: field `tools`")) << wrong;
}

TEST(Messages, ARoleThatIsNoTextIsNamed) {
  Options options;
  options.prompt_column = "messages";
  options.answer_column = "";
  const std::string row = R"({"messages": [{"role": "user", "content": "q"}, {"role": 3, "content": "a"}]})";
  EXPECT_TRUE(says(error_of([&] { open_records(record_file("r.jsonl", row), options, 0); }), "r.jsonl:1: field `messages`"));
}

TEST(Mix, EachPartGetsItsShareOfEveryStretch) {
  const std::vector<double> weights = {3, 1, 0.5, 2};
  const MixOrder order(weights);
  std::array<int64_t, 4> next{};
  for (int64_t position = 0; position < 20000; ++position) {
    const MixOrder::Draw draw = order.at(position);
    EXPECT_EQ(draw.position, next[draw.part]++) << position;  // none is left out, none comes twice
    for (size_t part = 0; part < 4; ++part)
      ASSERT_NEAR(static_cast<double>(next[part]), static_cast<double>(position + 1) * weights[part] / 6.5, 4.0) << position;
  }
  EXPECT_EQ(MixOrder({5.0}).at(123).position, 123);
}

TEST(Mix, AnEntryIsAFileAndAWeight) {
  Options options;
  EXPECT_EQ(mix_of(options).front().path, "synthetic");
  options.mix = {"a=b.jsonl=2", "synthetic=0.5"};
  EXPECT_EQ(mix_of(options)[0].path, "a=b.jsonl");
  EXPECT_EQ(mix_of(options)[1].weight, 0.5);
  for (const char* wrong : {"a.jsonl", "a=", "=1", "a=0", "a=-1", "a=x", "a=nan", ""}) {
    options.mix = {wrong};
    EXPECT_TRUE(says(error_of([&] { mix_of(options); }), "data.mix")) << wrong;
  }
}

}  // namespace
}  // namespace tandem::data
