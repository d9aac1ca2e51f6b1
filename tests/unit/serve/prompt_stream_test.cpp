// SPDX-License-Identifier: Apache-2.0
#include "tandem/serve/prompt_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/text/tokenizer_files.h"

namespace tandem::serve {
namespace {

namespace fs = std::filesystem;

class Prompts : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    text::write_char_tokenizer(folder_, "abcdefghijklmnopqrstuvwxyz:!0123456789+=\n", {"<eos>", "<pad>"});
    tokenizer_.emplace(text::Tokenizer::load(folder_));
    std::ofstream(folder_ + "/chat_template.jinja") << "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:";
    file("a.jsonl", R"({"question": "ccc", "answer": "1", "level": 3}
{"question": "a", "answer": "2", "level": 1}
{"question": "bb", "answer": "3", "level": 2})");
    file("b.jsonl", R"({"question": "zz", "answer": "9", "level": 0})");
    options_.train = folder_ + "/a.jsonl";
    options_.shuffle = false;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void file(const std::string& name, const std::string& content) const { std::ofstream(folder_ + "/" + name) << content; }
  serve::PromptStream stream() const { return {options_, data::Split::kTrain, serve::PromptText{*tokenizer_, folder_}}; }
  std::string texts(int64_t count) const {
    const serve::PromptStream prompts = stream();
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += prompts.at_position(i).text + " ";
    return out;
  }
  std::string error() const {
    try {
      stream().longest_prompt();
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }

  const std::string folder_ = (fs::temp_directory_path() / ("tandem_prompts_" + std::to_string(::getpid()))).string();
  std::optional<text::Tokenizer> tokenizer_;
  data::Options options_;
};

TEST_F(Prompts, MessagesAreRenderedByTheTemplateOfTheModelOrOfTheRecipe) {
  options_.as_chat = true;
  const data::Prompt prompt = stream().at_row(1);
  EXPECT_EQ(prompt.text, "u:a\na:");
  EXPECT_NE(prompt.messages.find("\"content\":\"a\""), std::string::npos) << "kept: a reward model renders them otherwise";
  EXPECT_EQ(tokenizer_->decode(prompt.ids), prompt.text);
  file("own.jinja", "{{ messages[0].content }}!");
  options_.chat_template = folder_ + "/own.jinja";
  EXPECT_EQ(stream().at_row(1).text, "a!");
}

TEST_F(Prompts, HeldOutSetsFollowEachOtherAndTheirRowsAreCountedTogether) {
  options_.eval = {"first=" + folder_ + "/a.jsonl", "second=" + folder_ + "/b.jsonl"};
  options_.max_prompt_tokens = 2;
  options_.too_long = "drop";  // ccc goes
  const PromptStream prompts(options_, data::Split::kHeldOut, PromptText{*tokenizer_, folder_});
  ASSERT_EQ(prompts.size(), 3);
  std::string seen;
  for (int64_t row = 0; row < 3; ++row) seen += prompts.at_row(row).text + std::to_string(prompts.at_row(row).row) + " ";
  EXPECT_EQ(seen, "a1 bb2 zz3 ") << "rows of the files, one set behind the other";
  ASSERT_EQ(prompts.sets().size(), 2);
  EXPECT_EQ(prompts.sets()[0].name + std::to_string(prompts.sets()[0].size), "first2");
  EXPECT_EQ(prompts.sets()[1].name + std::to_string(prompts.sets()[1].size), "second1");
  EXPECT_EQ(prompts.longest_prompt(), 2);
}

TEST_F(Prompts, MessagesTheTemplateRefusesNameTheLine) {
  options_.as_chat = true;
  file("own.jinja", "{{ raise_exception('no') if messages[0].content == 'bb' }}x");
  options_.chat_template = folder_ + "/own.jinja";
  EXPECT_TRUE(error().starts_with(folder_ + "/a.jsonl:3: ")) << error();
  EXPECT_NE(error().find("own.jinja:1: the template refuses the conversation: no"), std::string::npos) << error();
}

TEST_F(Prompts, LongOnesAreDroppedOrAnError) {
  options_.max_prompt_tokens = 2;
  EXPECT_TRUE(error().starts_with(folder_ + "/a.jsonl:1: the prompt has 3 tokens (at most data.max_prompt_tokens, 2")) << error();
  options_.too_long = "drop";
  EXPECT_EQ(stream().size(), 2);
  EXPECT_EQ(texts(4), "a bb a bb ");
  EXPECT_EQ(stream().longest_prompt(), 2);
  options_.max_prompt_tokens = 1;
  file("a.jsonl", R"({"question": "ccc", "answer": "1"})");
  EXPECT_TRUE(error().starts_with("a.jsonl: has no prompt that is short enough")) << error();
}

TEST_F(Prompts, ACurriculumOrdersEachEpoch) {
  options_.curriculum_column = "level";
  EXPECT_EQ(texts(4), "a bb ccc a ");
  options_.curriculum = "descending";
  options_.shuffle = true;  // there are no equal ones to shuffle
  EXPECT_EQ(texts(4), "ccc bb a ccc ");
}

TEST_F(Prompts, AMixDrawsByWeightAndEachSetKeepsItsOwnOrder) {
  options_.mix = {folder_ + "/a.jsonl=2", folder_ + "/b.jsonl=1"};
  EXPECT_EQ(stream().size(), 4);
  EXPECT_EQ(texts(9), "zz ccc a zz bb ccc zz a bb ");
  EXPECT_EQ(stream().at_row(3).text, "zz");
}

// A tokenizer of the kind that puts a BOS before every text, and a template that ends each turn of the model.
class Answers : public Prompts {
 protected:
  void SetUp() override {
    Prompts::SetUp();
    text::write_char_tokenizer(folder_, "abcdefghijklmnopqrstuvwxyz:!0123456789", {"<eos>", "<pad>", "<bos>", "<turn>"});
    const nlohmann::json bos = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}};
    const nlohmann::json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    nlohmann::json tokenizer = read_json_object(folder_ + "/tokenizer.json");
    tokenizer["post_processor"] = {{"type", "TemplateProcessing"},
                                   {"single", {bos, sequence}},
                                   {"pair", {bos, sequence}},
                                   {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {kBos}}, {"tokens", {"<bos>"}}}}}}};
    file("tokenizer.json", tokenizer.dump());
    tokenizer_.emplace(text::Tokenizer::load(folder_));
    ASSERT_EQ(tokenizer_->encode("b").front(), kBos);
    render("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<turn>{% endfor %}{% if add_generation_prompt %}a:{% endif %}");
  }
  void render(const std::string& source) const { file("chat_template.jinja", source); }
  std::vector<int32_t> answer(std::vector<int32_t> ends) const {
    const serve::PromptStream prompts = stream();
    return prompts.answer_ids(prompts.at_row(1), ends);
  }
  static constexpr int32_t kEos = 0, kPad = 1, kBos = 2, kTurn = 3;
  const int32_t two_ = 4 + 28 + 2;  // the answer of row 1
};

TEST_F(Answers, NothingStandsBeforeTheTextOfAnAnswer) {
  EXPECT_EQ(answer({kEos}), (std::vector<int32_t>{two_, kEos}));
  EXPECT_EQ(answer({}), (std::vector<int32_t>{two_}));
}

TEST_F(Answers, ATurnEndsWithTheListedTokenThatTheTemplateWritesThere) {
  options_.as_chat = true;
  EXPECT_EQ(answer({kPad, kEos, kTurn}), (std::vector<int32_t>{two_, kTurn}));
  render("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<turn><pad>{% endfor %}");
  EXPECT_EQ(answer({kEos, kPad}), (std::vector<int32_t>{two_, kPad})) << "generation does not stop at <turn>";
}

TEST_F(Answers, WithoutATemplateTheEndOfTextComesBeforeTheFirstListed) {
  EXPECT_EQ(answer({kPad, kEos, kTurn}), (std::vector<int32_t>{two_, kEos}));
  EXPECT_EQ(answer({kPad, kTurn}), (std::vector<int32_t>{two_, kPad}));
  options_.as_chat = true;
  render("{% for m in messages %}{{ m.content | replace('-', '') }}<turn>{% endfor %}");
  EXPECT_EQ(answer({kPad, kEos, kTurn}), (std::vector<int32_t>{two_, kEos})) << "where the template ends an answer nobody can tell";
}

// The order of a recipe of old stays as it was: the position alone decides.
TEST_F(Prompts, WithoutTheNewOptionsTheOrderIsThatOfDataOrder) {
  options_.shuffle = true;
  options_.seed = 7;
  const data::DataOrder order(7, 3, true);
  const serve::PromptStream prompts = stream();
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(prompts.at_position(i).row, order.row(i));
}

}  // namespace
}  // namespace tandem::serve
