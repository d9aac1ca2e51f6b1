// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "../../odd_files.h"
#include "../../temporary_folder.h"
#include "tandem/base/error.h"

namespace tandem::data {
namespace {

namespace fs = std::filesystem;

std::string file_with(const std::string& name, const std::string& content) {
  static const test::TemporaryFolder folder("source_");
  std::ofstream(folder / name, std::ios::binary) << content;
  return folder / name;
}

std::string error_of(const std::string& path, const Options& options) {
  try {
    open_records(path, options, 0);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(Records, Gsm8kAnswersStandAfterTheirMark) {
  Options options;
  options.answer_after = "####";
  options.prompt_template = "Q: {prompt}\nA:";
  const auto source = open_records(file_with("a.jsonl", R"({"question": "1+1?", "answer": "1+1=2\n#### 1,002"})"
                                                        "\n\n"
                                                        R"({"question": "q", "answer": "#### 3"})"),
                                   options, 0);
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->at(0).text, "Q: 1+1?\nA:");
  EXPECT_EQ(source->at(0).answer, "1002");
  EXPECT_EQ(source->at(1).row, 1);
}

TEST(Records, ArraysAndOtherColumnsWork) {
  Options options;
  options.prompt_column = "problem";
  const auto source = open_records(file_with("b.json", R"( [{"problem": "p", "answer": 7}, {"problem": "r", "answer": "x"}])"), options, 1);
  EXPECT_EQ(source->size(), 1);
  EXPECT_EQ(source->at(0).answer, "7");
}

TEST(Records, AColumnThatOnlyOtherRowsHaveIsNull) {
  const std::string with_hint = R"({"question": "r", "answer": "b", "hint": 1})";
  const std::string path = file_with("l.jsonl", R"({"question": "q", "answer": "a"})" "\n" + with_hint);
  Options options;
  options.columns = {"*"};
  auto source = open_records(path, options, 0);
  EXPECT_EQ(source->at(0).columns, R"({"question":"q","answer":"a","hint":null})");
  EXPECT_EQ(source->at(1).columns, R"({"question":"r","answer":"b","hint":1})");
  options.columns = {"hint"};
  EXPECT_EQ(open_records(path, options, 0)->at(0).columns, R"({"question":"q","hint":null})");
}

TEST(Records, ErrorsNameFileAndLine) {
  Options options;
  const std::string good = R"({"question": "q", "answer": "a"})" "\n";
  EXPECT_NE(error_of(file_with("c.jsonl", good + "{oops\n"), options).find("c.jsonl:2: is not JSON from its byte 2 on"), std::string::npos);
  EXPECT_NE(error_of(file_with("d.jsonl", good + R"({"qestion": "q", "answer": "a"})"), options)
                .find("d.jsonl:2: has no field `question` (the nearest is `qestion`"),
            std::string::npos);
  EXPECT_NE(error_of(file_with("n.jsonl", R"({"level": 1, "text": "q"})"), options)
                .find("n.jsonl:1: has no field `question` (it has `level`, `text`; set data.prompt_column"),
            std::string::npos);
  EXPECT_NE(error_of(file_with("e.jsonl", R"({"question": [], "answer": "a"})"), options).find("expected a text"), std::string::npos);
  EXPECT_NE(error_of(file_with("f.jsonl", "\n"), options).find("holds no rows"), std::string::npos);
  EXPECT_NE(error_of(file_with("g.json", "[]"), options).find("holds no rows"), std::string::npos);
  EXPECT_NE(error_of("/nonexistent/x.jsonl", options).find("cannot be read"), std::string::npos);
  options.answer_after = "####";
  EXPECT_NE(error_of(file_with("h.jsonl", good), options).find("h.jsonl:1: the answer holds no `####`"), std::string::npos);
  options.prompt_template = "no place";
  EXPECT_NE(error_of(file_with("h.jsonl", good), options).find("{prompt}"), std::string::npos);
}

TEST(Records, AFileOfAnotherKindIsNamedForWhatItIs) {
  const std::string bom16 = "\xFF\xFE", zip = "PK\x03\x04", gzip = "\x1F\x8B\x08";
  const std::string latin = "{\"question\": \"caf\xE9\", \"answer\": \"a\"}\n";
  const std::pair<std::string, std::string> wrong[] = {
      {file_with("k.jsonl.gz", gzip + std::string(20, 'x')), "k.jsonl.gz: is a gzip archive"},
      {file_with("k1.jsonl", gzip + "x"), "k1.jsonl: is a gzip archive"},
      {file_with("k.xlsx", zip), "k.xlsx: is a zip archive"},
      {file_with("k.zst", "\x28\xB5\x2F\xFD"), "is a zstd archive"},
      {file_with("k2.jsonl", bom16 + std::string("{\0}\0", 4)), "k2.jsonl: is text in UTF-16"},
      {file_with("k3.jsonl", std::string("{\0}\0", 4)), "is text in UTF-16"},
      {file_with("k.arrow", "ARROW1"), "is an Arrow file"},
      {file_with("k4.jsonl", "<!doctype html><title>404</title>"), "is a web page"},
      {file_with("k5.parquet", "version https://git-lfs.github.com/spec/v1\n"), "is a pointer of Git LFS"},
      {file_with("k.csv", "question,answer\nq,a\n"), "k.csv: is a table of commas"},
      {file_with("k.tsv", "question\tanswer\nq\ta\n"), "k.tsv: is a table of tabs"},
      {file_with("k6.jsonl", "question,answer\nq,a\n"), "k6.jsonl: seems to be a table of commas"},
      {file_with("k7.jsonl", latin), "k7.jsonl:1: is not UTF-8 at its byte 18, 0xE9"},
      {file_with("k8.json", "[" + latin + "]"), "k8.json: is not UTF-8 at its byte 19, 0xE9"},
      {file_with("k9.jsonl", R"({"question": "q", "answer": 1e400})"),
       "k9.jsonl:1: holds the number 1e400, which is larger than any float"},
  };
  for (const auto& [path, what] : wrong) EXPECT_NE(error_of(path, {}).find(what), std::string::npos) << error_of(path, {});
  EXPECT_NE(error_of(fs::temp_directory_path().string(), {}), "");
  EXPECT_EQ(error_of(file_with("bom.jsonl", std::string("\xEF\xBB\xBF") + R"({"question": "q", "answer": "a"})"), {}), "");
}

TEST(Records, ANumberOfARowIsNotRounded) {
  const auto gold = [](const std::string& number) {
    return open_records(file_with("n.jsonl", R"({"question": "q", "answer": )" + number + "}"), {}, 0)->at(0).answer;
  };
  for (const char* number : {"123456789012345678901234567890", "-123456789012345678901234567890", "18446744073709551616",
                             "18446744073709551615", "3.14159265358979323846", "1e-400", "1.0", "1", "-0.0", "0.1",
                             "2.50000000000000000001"})
    EXPECT_EQ(gold(number), number);
  EXPECT_EQ(gold("[123456789012345678901234567890, 1]"), "[123456789012345678901234567890,1]");
  Options options;
  options.columns = {"*"};
  options.curriculum_column = "rank";
  const std::string big = R"({"question": 12345678901234567890123, "answer": "a", "rank": 123456789012345678901, )"
                          R"("messages": [{"n": 98765432109876543210987}]})";
  const auto source = open_records(file_with("big.json", "[" + big + "]"), options, 0);
  EXPECT_EQ(source->at(0).text, "12345678901234567890123");
  EXPECT_EQ(source->at(0).rank, 123456789012345678901.0);
  EXPECT_NE(source->at(0).columns.find(R"([{"n":98765432109876543210987}])"), std::string::npos) << source->at(0).columns;
  options.prompt_column = "messages";
  const std::string talk = R"({"messages": [{"role": "user", "content": "q", "n": 98765432109876543210987}], "answer": "a", "rank": 1})";
  const std::string messages = open_records(file_with("talk.jsonl", talk), options, 0)->at(0).messages;
  EXPECT_NE(messages.find(R"("n":98765432109876543210987)"), std::string::npos) << messages;
}

TEST(Records, EveryPlaceOfATemplateIsFilledAndTheQuestionStaysAsItIs) {
  const auto text = [](const std::string& form, const std::string& question) {
    Options options;
    options.prompt_template = form;
    const std::string row = "{\"question\": \"" + question + "\", \"answer\": \"a\"}";
    return open_records(file_with("t.jsonl", row), options, 0)->at(0).text;
  };
  EXPECT_EQ(text("{prompt} Read it again: {prompt}", "2+2?"), "2+2? Read it again: 2+2?");
  EXPECT_EQ(text("{prompt}{prompt}{prompt}", "x"), "xxx");
  EXPECT_EQ(text("{prompt} or {prompt}", "{prompt}"), "{prompt} or {prompt}") << "a question may hold the text";
  EXPECT_EQ(text("{prompt}|{prompt}", "a {prompt} b"), "a {prompt} b|a {prompt} b");
  EXPECT_EQ(text("Q: {prompt}", ""), "Q: ");
  EXPECT_EQ(text("{prompt} in \\boxed{answer}, {not this}", "q"), "q in \\boxed{answer}, {not this}");
  for (const char* form : {"{{prompt}}", "Q {{prompt}} {prompt}", "{ prompt }", "{Prompt}", "{question}", ""}) {
    Options options;
    options.prompt_template = form;
    EXPECT_NE(error_of(file_with("t.jsonl", "{}"), options).find("data.prompt_template"), std::string::npos) << form;
  }
}

TEST(Records, APipeOrADeviceIsRefusedAtOnce) {
  const test::TemporaryFolder folder("odd_records");
  for (const char* name : {"rows.jsonl", "rows.parquet"})
    EXPECT_EQ(test::opens_odd_files(folder / name, [&] { open_records(folder / name, {}, 0); }), std::vector<std::string>());
}

TEST(Records, LinesThatNestWithoutEndAreRefused) {
  const std::string brackets(100000, '['), closing(100000, ']');
  const std::string row = R"({"question": "q", "answer": "a", "other": )" + brackets + closing + "}";
  EXPECT_NE(error_of(file_with("deep.jsonl", "\n" + row), {}).find("deep.jsonl:2: nests deeper than 500 levels"), std::string::npos);
  EXPECT_NE(error_of(file_with("deep.json", "[" + row + "]"), {}).find("deep.json: nests deeper than 500 levels"), std::string::npos);
}

TEST(Records, APlaceIsThatInTheFileWhateverWasPassedOver) {
  const std::string lost = R"({"question": "p", "answer": null})", good = R"({"question": "q", "answer": "a"})";
  const auto lines = open_records(file_with("p.jsonl", "\n" + lost + "\n" + good + "\n"), {}, 0);
  ASSERT_EQ(lines->size(), 1);
  EXPECT_TRUE(lines->where(0).ends_with("p.jsonl:3")) << lines->where(0);
  const auto array = open_records(file_with("p.json", "[" + lost + "," + good + "]"), {}, 0);
  EXPECT_TRUE(array->where(0).ends_with("p.json row 2")) << array->where(0);
  EXPECT_NE(error_of(file_with("q.json", "[" + good + ", 7]"), {}).find("q.json row 2: is not a JSON object"), std::string::npos);
}

TEST(Records, TheSharedDataSetsOpen) {
  const std::string data = std::string(TANDEM_SOURCE_DIR) + "/../shared/data";
  if (!fs::exists(data)) GTEST_SKIP() << "no ../shared";
  Options gsm8k;
  gsm8k.answer_after = "####";
  const auto train = open_records(data + "/gsm8k/train.jsonl", gsm8k, 0);
  EXPECT_EQ(train->size(), 7473);
  for (int64_t row = 0; row < train->size(); ++row) ASSERT_EQ(train->at(row).answer.find(','), std::string::npos);
  Options math;
  math.prompt_column = "problem";
  for (const char* name : {"math500", "math_train", "aime24"})
    EXPECT_GT(open_records(data + "/math/" + name + ".json", math, 0)->size(), 20) << name;
}

TEST(Additions, AreRightAndSplitForEverySeed) {
  std::set<std::pair<std::string, std::string>> trained;
  Options options;
  options.digits = 2;
  options.min_digits = 1;
  auto operands = [](const Prompt& p) {
    const size_t plus = p.text.find('+');
    std::string a = p.text.substr(0, plus), b = p.text.substr(plus + 1, p.text.size() - plus - 2);
    EXPECT_EQ(std::stoll(a) + std::stoll(b), std::stoll(p.answer)) << p.text;
    if (b < a) std::swap(a, b);
    return std::pair(a, b);
  };
  for (int64_t seed : {1, 2, 3}) {
    options.seed = seed;
    const auto train = open_additions(options, Split::kTrain);
    for (int64_t row = 0; row < 2000; ++row) trained.insert(operands(train->at(row)));
  }
  options.seed = 4;
  const auto held_out = open_additions(options, Split::kHeldOut);
  for (int64_t row = 0; row < held_out->size(); ++row) EXPECT_FALSE(trained.count(operands(held_out->at(row))));
  EXPECT_EQ(held_out->at(5).text, held_out->at(5).text);
}

TEST(Additions, CanBeWrittenBackwards) {
  Options options;
  options.digits = 3;
  const Prompt plain = open_additions(options, Split::kTrain)->at(0);
  options.reversed = true;
  Prompt backwards = open_additions(options, Split::kTrain)->at(0);
  std::reverse(backwards.answer.begin(), backwards.answer.end());
  EXPECT_EQ(backwards.answer, plain.answer);
}

TEST(Additions, AreReadAsPeopleWriteNumbers) {
  Options options;
  EXPECT_EQ(as_read(options, "321+654="), "321+654=") << "they are written so";
  options.reversed = true;
  const std::pair<const char*, const char*> cases[] = {{"321+654=", "123+456="}, {"975", "579"}, {"001", "100"}, {"", ""}, {"+=", "+="},
                                                       {"12a34", "21a43"}, {"7", "7"}};
  for (const auto& [written, read] : cases) EXPECT_EQ(as_read(options, written), read);
  const Prompt prompt = open_additions(options, Split::kHeldOut)->at(5);
  options.reversed = false;
  EXPECT_EQ(as_read({.reversed = true}, prompt.text), open_additions(options, Split::kHeldOut)->at(5).text);
}

// The two numbers of a problem, in the order in which they stand, and its right answer.
std::array<int64_t, 3> numbers_of(const Prompt& prompt) {
  std::vector<int64_t> found;
  for (size_t at = 0; (at = prompt.text.find_first_of("0123456789", at)) != std::string::npos;) {
    size_t length = 0;
    found.push_back(std::stoll(prompt.text.substr(at), &length));
    at += length;
  }
  EXPECT_EQ(found.size(), 2u) << prompt.text;
  found.resize(2);
  return {found[0], found[1], std::stoll(prompt.answer)};
}

TEST(WordProblems, HaveTheAnswerOfOneOperationAndASplitForEverySeed) {
  std::array<std::set<std::pair<int64_t, int64_t>>, 3> trained;
  std::set<std::string> texts;
  const auto operation_of = [](const std::array<int64_t, 3>& n) {
    const auto [a, b, answer] = n;
    return answer == a + b ? 0 : answer == std::max(a, b) - std::min(a, b) ? 1 : answer == a * b ? 2 : -1;
  };
  Options options;
  options.synthetic_rows = 3000;
  for (int64_t seed : {1, 2, 3}) {
    options.seed = seed;
    const auto train = open_source("word_problems", options, Split::kTrain);
    ASSERT_EQ(train->size(), 3000);
    for (int64_t row = 0; row < train->size(); ++row) {
      const Prompt prompt = train->at(row);
      EXPECT_EQ(prompt.text.find_first_of("{}"), std::string::npos) << prompt.text;
      const auto n = numbers_of(prompt);
      ASSERT_GE(operation_of(n), 0) << prompt.text << " " << prompt.answer;
      trained[static_cast<size_t>(operation_of(n))].insert(std::minmax(n[0], n[1]));
      texts.insert(prompt.text);
    }
  }
  EXPECT_GT(texts.size(), 8500u) << "few problems come twice";
  for (const auto& pairs : trained) EXPECT_GT(pairs.size(), 40u);
  options.seed = 4;
  const auto held_out = open_source("word_problems", options, Split::kHeldOut);
  for (int64_t row = 0; row < held_out->size(); ++row) {
    const auto n = numbers_of(held_out->at(row));
    EXPECT_FALSE(trained[static_cast<size_t>(operation_of(n))].count(std::minmax(n[0], n[1]))) << held_out->at(row).text;
  }
}

TEST(WordProblems, OfAnEvaluationAreAThirdOfEachOperationAndHaveManyNumbersAndPhrasingsOfTheirOwn) {
  Options options;
  options.synthetic_rows = 3000;
  options.synthetic_eval_rows = 300;
  options.held_out_fraction = 0.25;  // as configs/smollm2_word_problems.yaml has it
  const std::array<std::regex, 3> held_out_phrasings = {std::regex(R"(has \d+ more than )"),
                                                        std::regex(R"(together\. \d+ of them are)"), std::regex(R"(times as many)")};
  const auto train = open_source("word_problems", options, Split::kTrain);
  for (int64_t row = 0; row < train->size(); ++row) {
    const std::string text = train->at(row).text;
    for (const std::regex& phrasing : held_out_phrasings) EXPECT_FALSE(std::regex_search(text, phrasing)) << text;
  }
  const auto evaluation = open_source("word_problems", options, Split::kHeldOut);
  std::array<std::map<std::pair<int64_t, int64_t>, int>, 3> facts;
  std::array<int, 3> of_phrasing{};
  constexpr std::array<size_t, 3> kFewestFacts = {60, 40, 12};
  for (int64_t row = 0; row < evaluation->size(); ++row) {
    const auto n = numbers_of(evaluation->at(row));
    ++facts[static_cast<size_t>(row % 3)][std::minmax(n[0], n[1])];
    for (size_t i = 0; i < 3; ++i) of_phrasing[i] += std::regex_search(evaluation->at(row).text, held_out_phrasings[i]);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(facts[i].size(), kFewestFacts[i]) << "facts of operation " << i;
    for (const auto& [fact, times] : facts[i]) EXPECT_LE(times, 20) << fact.first << " and " << fact.second << " fill a fifth";
    EXPECT_NEAR(of_phrasing[i], 100 / 7, 12) << "of operation " << i;
  }
}

TEST(WordProblems, AreRecordsAsThoseOfAFile) {
  Options options;
  options.as_chat = true;
  options.prompt_template = "{prompt} End with the number.";
  options.max_rows = 2;
  const auto source = open_source("word_problems", options, Split::kTrain);
  EXPECT_EQ(source->size(), 2);
  EXPECT_EQ(source->where(1), "word_problems row 2");
  EXPECT_NE(source->at(1).messages.find(" End with the number."), std::string::npos);
  EXPECT_EQ(source->at(1).data_source, "word_problems");
  options.held_out_fraction = 0.9;
  EXPECT_GT(open_source("word_problems", options, Split::kHeldOut)->size(), 0);
}

TEST(DataOrder, IsAPermutationOfEveryEpoch) {
  for (int64_t size : {1, 2, 3, 7, 64, 1000}) {
    const DataOrder order(42, size);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> rows;
      for (int64_t i = 0; i < size; ++i) rows.insert(order.row(epoch * size + i));
      EXPECT_EQ(static_cast<int64_t>(rows.size()), size);
      EXPECT_EQ(*rows.begin(), 0);
      EXPECT_EQ(*rows.rbegin(), size - 1);
    }
  }
}

TEST(DataOrder, DiffersByEpochAndSeedAndNotByTime) {
  const DataOrder order(1, 100), same(1, 100), other(2, 100);
  int by_epoch = 0, by_seed = 0;
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(order.row(i), same.row(i));
    by_epoch += order.row(i) != order.row(100 + i);
    by_seed += order.row(i) != other.row(i);
  }
  EXPECT_GT(by_epoch, 80);
  EXPECT_GT(by_seed, 80);
  EXPECT_EQ(DataOrder(1, 100, false).row(205), 5);
}

}  // namespace
}  // namespace tandem::data
