// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/rule.h"

#include <gtest/gtest.h>

#include <chrono>
#include <tuple>

#include "tandem/base/error.h"
#include "tandem/reward/graders.h"

namespace tandem::reward {
namespace {

double grade(const std::string& spec, const std::string& response, const std::string& gold, int64_t tokens = 0) {
  return make_rule(spec)->score({response, gold, tokens}).score;
}

std::string error_of(const std::string& spec) {
  try {
    make_rule(spec);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

// Those that are functions here, without a process, a server or an environment behind them.
std::vector<std::string> plain_rules() {
  std::vector<std::string> names = rule_names();
  for (const char* outside : {"math_verify", "python", "code", "http", "model", "episode"}) std::erase(names, outside);
  return names;
}

TEST(Rule, SimpleRulesGradeAsNamed) {
  EXPECT_EQ(grade("exact", " 42\n", "42"), 1);
  EXPECT_EQ(grade("exact", "42.", "42"), 0);
  EXPECT_EQ(grade("number", "12+30 is 1,042", "1042"), 1);
  EXPECT_EQ(grade("number", "so 18.0", "18"), 1);
  EXPECT_EQ(grade("number", "so 3,4", "34"), 0);
  EXPECT_EQ(grade("number", "so 3,4", "4"), 1);
  EXPECT_EQ(grade("number", "12,345,678, in all", "12345678"), 1);
  EXPECT_EQ(grade("number", "1,234,5", "12345"), 0);
  EXPECT_EQ(grade("number", "10-3", "3"), 1);
  EXPECT_EQ(grade("number", "it is -3", "3"), 0);
  EXPECT_EQ(grade("number", "none", "3"), 0);
  EXPECT_THROW(grade("number", "1", "none"), UserError);
  EXPECT_EQ(grade("regex(pattern=\\d{3})", "a 123", ""), 1);
  EXPECT_EQ(grade("regex", "a 12", "^\\d"), 0);
  EXPECT_EQ(grade("json", "{\"a\": [1]}", ""), 1);
  EXPECT_EQ(grade("json", "{a}", ""), 0);
  EXPECT_EQ(grade("gsm8k", "#### 18", "18"), 1);
  EXPECT_EQ(grade("gsm8k(method=flexible)", "is 42.", "42"), 0);
  EXPECT_EQ(grade("dapo", "Answer: 42", "42"), 1);
  EXPECT_EQ(grade("dapo(strict_box=true)", "Answer: 42", "42"), -1);
  EXPECT_EQ(grade("choice", "The answer is B.", "B"), 1);
  EXPECT_EQ(grade("overlong(max_tokens=100, overlong_cache=20)", "", "", 90), -0.5);
  EXPECT_EQ(grade("hendrycks", "so \\boxed{10\\%}", "10"), 1);
}

// What float() of Python or strtod read, and mathematics does not.
TEST(Rules, ANumeralOfAProgramIsNoNumberOfAnAnswer) {
  EXPECT_EQ(grade("number", "it is 0x10", "10"), 0) << "the digits of a hexadecimal numeral";
  EXPECT_EQ(grade("number", "it is 0x10", "16"), 0);
  EXPECT_EQ(grade("number", "it is 0b11", "11"), 0);
  EXPECT_EQ(grade("number", "it is -0x10", "-10"), 0);
  EXPECT_EQ(grade("number", "it is 1_000", "0"), 0) << "the end of 1_000";
  EXPECT_EQ(grade("number", "it is 1_000", "1"), 0);
  EXPECT_EQ(grade("number", "2x10", "10"), 1) << "a product";
  EXPECT_EQ(grade("number", "f_0 is 10", "10"), 1);
  EXPECT_EQ(grade("number", "nan", "0"), 0);
  EXPECT_EQ(grade("dapo_slime", "Answer: 16", "0x10"), -1) << "the right answer is a text, then";
  EXPECT_EQ(grade("dapo_slime", "Answer: 16", "16.0"), 1);
  EXPECT_EQ(grade("dapo_slime", "Answer: 5", "inf"), -1);
}

TEST(Rules, AWeightIsADecimalNumeral) {
  for (const std::string weight : {"inf", "nan", "0x10", "1_0", "1e999"}) {
    Options options;
    options.rules = {"number=" + weight};
    EXPECT_THROW(make_reward(options), UserError) << weight;
  }
}

TEST(Rule, AnAnswerOfFullLengthIsTheLongestThatIsAskedForUnlessTheRecipeSaysMore) {
  const auto overlong = [](Options options, int64_t tokens) {
    options.rule = "overlong";
    return make_reward(options)->score({"", "", tokens}).score;
  };
  Options options;
  options.overlong_cache = 20;
  EXPECT_EQ(overlong(for_responses_of(100, options), 90), -0.5);
  EXPECT_EQ(overlong(options, 990), -0.5) << "TRL's 1000";
  options.max_tokens = 50;
  EXPECT_EQ(overlong(for_responses_of(100, options), 40), -0.5);
  options.overlong_cache = 51;
  EXPECT_THROW(overlong(options, 1), UserError) << "an answer of no token would be too long";
}

TEST(Rule, AModelIsWhatTheMakerMakesOfTheOptions) {
  std::vector<std::string> asked;
  const ModelRuleMaker maker = [&](const Options& options) {
    asked.push_back(options.model);
    return std::make_unique<FunctionRule>("model", [](const Answer& a) { return Score{static_cast<double>(a.response.size()), {}, ""}; });
  };
  EXPECT_EQ(make_rule("model(model=DIR)", {}, maker)->score({"abc", ""}).score, 3);
  Options options;
  options.model = "OTHER";
  EXPECT_EQ(make_reward(options, maker)->score({"abcd", ""}).score, 4) << "without a rule, the model is it";
  options.rules = {"exact=1.0", "model=0.5"};
  EXPECT_EQ(make_reward(options, maker)->score({"ab", "ab"}).score, 2);
  options.by_source = {"a=model(model=THIRD)"};
  Answer from_a{"abc", ""};
  from_a.data_source = "a";
  EXPECT_EQ(make_reward(options, maker)->score(from_a).score, 3);
  EXPECT_EQ(asked, (std::vector<std::string>{"DIR", "OTHER", "OTHER", "THIRD", "OTHER"}));
  EXPECT_NE(error_of("model(model=DIR)").find("no model can be run"), std::string::npos);
}

TEST(Rule, GradedMathFollowsItsFormula) {
  const std::string full = "<think>1. add\n2. carry\n3. done</think><answer>42</answer>";
  EXPECT_DOUBLE_EQ(grade("graded_math", full, "42"), 1.0);
  EXPECT_DOUBLE_EQ(grade("graded_math", full, "43"), 0.0);
  EXPECT_DOUBLE_EQ(grade("graded_math", "\\boxed{42}", "42"), 0.7);
  EXPECT_NEAR(grade("graded_math", "0123456789" + full, "42"), 0.99, 1e-12);
  EXPECT_NEAR(grade("graded_math", std::string(500, 'x') + full, "42"), 0.9, 1e-12);
  EXPECT_NEAR(grade("graded_math", "<think>sum</think><answer>42</answer>", "42"), 0.9, 1e-12);
  EXPECT_NEAR(grade("graded_math", "<answer>42</answer>", "42"), 0.8, 1e-12);
}

TEST(Rule, LengthComparesTheAnswersOfAGroup) {
  const auto rule = make_rule("length");
  const std::vector<Answer> answers = {{"7", "7", 10}, {"7", "7", 30}, {"8", "7", 10}, {"8", "7", 30}, {"7", "7", 20}};
  std::vector<double> scores;
  for (const Score& score : rule->score_batch(answers)) scores.push_back(score.score);
  EXPECT_EQ(scores, (std::vector<double>{0.5, -0.5, 0, -0.5, 0}));
  EXPECT_EQ(rule->score(answers[0]).score, 0) << "alone it is neither short nor long";
}

TEST(Rule, JsonMayHaveToKeepASchema) {
  const std::string schema = R"({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {)"
                             R"("a": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},)"
                             R"("b": {"enum": ["x", null]}, "c": {"type": "string", "maxLength": 2, "pattern": "^é"}}})";
  const std::string spec = "json(schema='" + schema + "')";
  for (const std::string right : {R"({"a": [1, 2.0]})", R"({"a": [0], "b": null, "c": "éa"})"})
    EXPECT_EQ(grade(spec, right, ""), 1) << right;
  for (const std::string wrong : {R"({})", R"([1])", R"({"a": []})", R"({"a": [-1]})", R"({"a": [1.5]})", R"({"a": ["1"]})",
                                  R"({"a": [1], "d": 1})", R"({"a": [1], "b": "y"})", R"({"a": [1], "c": "éaa"})",
                                  R"({"a": [1], "c": "aé"})", R"({"a": [1])"})
    EXPECT_EQ(grade(spec, wrong, ""), 0) << wrong;
  EXPECT_NE(error_of("json(schema={\"typ\": \"object\"})").find("the nearest is `type`"), std::string::npos);
  EXPECT_NE(error_of("json(schema={\"type\": \"list\"})").find("no type `list`"), std::string::npos);
  EXPECT_NE(error_of("json(schema=nowhere.json)").find("no file nowhere.json"), std::string::npos);
  EXPECT_NE(error_of("json(schema=/dev/zero)").find("it is a device"), std::string::npos);
  const std::string deep = std::string(20000, '[') + std::string(20000, ']');
  EXPECT_NE(error_of("json(schema='{\"enum\": " + deep + "}')").find("nests too deep"), std::string::npos);
  EXPECT_NE(error_of("json(schema={)").find("is no schema"), std::string::npos);
}

TEST(Rule, BothPublishedFormsOfDapoHaveAName) {
  EXPECT_EQ(grade("dapo", "Answer: 42", "42.0"), -1) << "verl, MindSpeed: the texts differ";
  EXPECT_EQ(grade("dapo_slime", "Answer: 42", "42.0"), 1) << "slime: the right answer as an integer";
}

TEST(Rule, WhoNeedsNoRightAnswerSaysSo) {
  for (const std::string spec : {"json", "think_format", "repetition", "overlong", "regex(pattern=a)"})
    EXPECT_FALSE(make_rule(spec)->needs_gold()) << spec;
  for (const std::string spec : {"exact", "math", "regex", "cosine", "dapo"}) EXPECT_TRUE(make_rule(spec)->needs_gold()) << spec;
}

TEST(Rule, AnUnknownNameOrOptionNamesTheNearest) {
  EXPECT_NE(error_of("nubmer").find("`number`"), std::string::npos);
  EXPECT_NE(error_of("gsm8k(metod=flexible)").find("`method`"), std::string::npos);
  EXPECT_NE(error_of("gsm8k(method=loose)").find("method"), std::string::npos);
  EXPECT_NE(error_of("gsm8k(method=flexible").find("bracket"), std::string::npos);
  EXPECT_NE(error_of("regex(pattern=[)").find("does not compile"), std::string::npos);
}

TEST(Reward, IsAWeightedSumWithEveryPart) {
  Options options;
  options.rules = {"number=1.0", "think_format=0.2", "gsm8k(method=flexible)=0.5"};
  const Score score = make_reward(options)->score({"<think>a</think>7", "7"});
  EXPECT_DOUBLE_EQ(score.score, 1.7);
  ASSERT_EQ(score.parts.size(), 3u);
  EXPECT_EQ(score.parts[1], (std::pair<std::string, double>{"think_format", 1.0}));
  options.rules = {"number=heavy"};
  EXPECT_THROW(make_reward(options), UserError);
}

TEST(Rule, AChoiceMayBeGivenByItsLetterItsTextOrItsIndex) {
  const std::vector<std::string> choices = {"red", "dark blue", "7"};
  const auto rule = make_rule("choice");
  const auto score = [&](const std::string& response, const std::string& gold) {
    return rule->score({response, gold, 0, false, choices}).score;
  };
  EXPECT_EQ(score("The answer is B.", "B"), 1);
  EXPECT_EQ(score("The answer is B.", "Dark blue"), 1);
  EXPECT_EQ(score("The answer is B.", "1"), 1);
  EXPECT_EQ(score("The answer is C.", "7"), 1);
  EXPECT_EQ(score("The answer is A.", "1"), 0);
  EXPECT_EQ(score("it was dark-blue", "1"), 1);
  EXPECT_EQ(grade("choice", "The answer is B.", "dark blue"), 0);
}

TEST(Rule, TheTextsOfChoicesMayBeAColumnOfTheRow) {
  const auto score = [](const std::string& spec, const std::string& response, const std::string& gold, const std::string& columns) {
    Answer answer{response, gold};
    answer.columns = columns;
    return make_rule(spec)->score(answer).score;
  };
  EXPECT_EQ(score("choice", "The answer is B.", "dark blue", R"({"choices": ["red", "dark blue"]})"), 1);
  EXPECT_EQ(score("choice", "The answer is B.", "1", R"({"choices": ["red", "dark blue"]})"), 1);
  EXPECT_EQ(score("choice(choices_column=c.text)", "The answer is A.", "red", R"({"c": {"text": ["red", "dark blue"]}})"), 1);
  EXPECT_EQ(score("choice(choices_column=c.text)", "The answer is B.", "red", R"({"c": {"text": ["red", "dark blue"]}})"), 0);
  EXPECT_EQ(score("choice", "The answer is B.", "B", R"({"other": 1})"), 1) << "rows without choices name the letter";
  EXPECT_THROW(score("choice", "The answer is B.", "B", R"({"choices": "red"})"), UserError);
  EXPECT_TRUE(make_rule("choice")->reads_columns());
  EXPECT_FALSE(make_rule("math")->reads_columns()) << "then none are kept";
}

// Whoever scores elsewhere is told right answers only then.
TEST(Rules, SayWhetherTheyGoByRightAnswers) {
  Options options;
  options.pattern = "[0-4]";
  for (const char* rule : {"math", "exact", "choice", "length", "cosine"}) EXPECT_TRUE(make_rule(rule)->reads_gold()) << rule;
  for (const char* rule : {"json", "think_format", "repetition"}) EXPECT_FALSE(make_rule(rule)->reads_gold()) << rule;
  EXPECT_TRUE(make_rule("regex")->reads_gold()) << "it is the pattern";
  EXPECT_FALSE(make_rule("regex", options)->reads_gold());
  EXPECT_TRUE(batch_rule("host", [](std::span<const Answer>) { return std::vector<Score>(); })->reads_gold()) << "it may";
}

Answer from(const std::string& source, const std::string& response, const std::string& gold) {
  Answer answer{response, gold};
  answer.data_source = source;
  return answer;
}

TEST(Reward, MayHaveARuleForEachDataSet) {
  Options options;
  options.by_source = {"openai/gsm8k=gsm8k(method=flexible)", "format=json"};
  const auto reward = make_reward(options);
  const std::vector<Answer> answers = {from("openai/gsm8k", "so 7", "7"), from("openai/gsm8k", "so 8", "7"), from("format", "[7]", "")};
  const std::vector<Score> scores = reward->score_batch(answers);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0].score, 1);
  EXPECT_EQ(scores[1].score, 0);
  EXPECT_EQ(scores[2].score, 1);
  EXPECT_EQ(scores[0].parts[0].first, "gsm8k");
  EXPECT_EQ(scores[2].parts[0].first, "json");
  try {
    reward->score(from("gsm8k", "so 7", "7"));
    FAIL() << "no rule";
  } catch (const UserError& e) {
    const std::string wanted = "no rule for the data set `gsm8k` (it has some for format, openai/gsm8k; ";
    EXPECT_NE(std::string(e.what()).find(wanted), std::string::npos) << e.what();
  }
  options.rules = {"exact=2"};
  EXPECT_EQ(make_reward(options)->score(from("gsm8k", "7", "7")).score, 2) << "the others";
}

TEST(Reward, AnEntryOfADataSetIsANameAndARule) {
  const auto refused = [](std::vector<std::string> by_source) {
    Options options;
    options.by_source = std::move(by_source);
    EXPECT_THROW(make_reward(options), UserError);
  };
  refused({"math"});
  refused({"=math"});
  refused({"a=mth"});
  refused({"a=math", "a=exact"});
}

TEST(Rule, ASettingMayHoldCommasInBracketsOrQuotes) {
  EXPECT_EQ(grade("regex(pattern=^\\d{1,3}$)", "12", ""), 1);
  EXPECT_EQ(grade("regex(pattern=^\\d{1,3}$)", "1234", ""), 0);
  EXPECT_EQ(grade("regex(pattern=^[(,]$, max_tokens=5)", ",", ""), 1);
  EXPECT_EQ(grade("regex(pattern=^\\($, max_tokens=5)", "(", ""), 1);
  EXPECT_EQ(grade("regex(pattern='^a, b$', max_tokens=5)", "a, b", ""), 1);
  EXPECT_EQ(grade("regex(pattern=\"it's, so\")", "it's, so", ""), 1);
  EXPECT_NE(error_of("regex(pattern='a, b)").find("quote"), std::string::npos);
  EXPECT_NE(error_of("regex(pattern)").find("option=value"), std::string::npos);
  EXPECT_NE(error_of("regex(loose, pattern=a)").find("`loose`"), std::string::npos);
}

TEST(Rule, AHostileAnswerIsAScoreAndNeverAnError) {
  EXPECT_EQ(grade("regex(pattern=(a+)+$)", std::string(40, 'a') + "!", ""), 0);
  EXPECT_EQ(grade("regex", std::string(40, 'a') + "!", "(a+)+$"), 0);
  // Rules see what a model makes up; none may take minutes over it.
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& name : plain_rules()) {
    if (name == "regex") continue;
    for (const std::string part : {"\n", "answer ", "is ", "\\boxed{", "\\frac", "[", "{\"a\":", "$", "1,", "A ", "step ", "\\text{a}"}) {
      std::string text;
      while (text.size() < 50000) text += part;
      EXPECT_NO_THROW(grade(name, "answer" + text + "!", "7")) << name << " " << part;
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Rule, IllFormedBytesAreNoError) {
  for (const std::string& name : plain_rules()) {
    EXPECT_NO_THROW(grade(name, "\xF0\x9F 7 \xFF", "7")) << name;
  }
}

TEST(Choice, ALetterIsAWordOfItsOwnAndOneOfTheChoicesThereAre) {
  const auto letter = [](const std::string& response, const char* letters = "ABCD") {
    const auto found = choice_letter(response, letters);
    return found ? std::string(1, *found) : "none";
  };
  for (const char* text : {"The answer is (B).", "So the answer is **(B)**.", "The correct answer is: **B**",
      "The answer is \\boxed{B}.", "The answer is $\\boxed{\\text{(B)}}$", "\\boxed{\\textbf{(B)}\\ 12}", "Answer: (B)", "answer: b",
      "ANSWER: B", "The answer is (b).", "The best choice is B: Paris", "The answer is option B.", "Final answer: \\text{B}", "(B)", "B",
      "**B**", "B. Paris", "B) because A fails", "The answer is [B]", "The answer is \"B\".", "The answer is A. Wait, it is B.",
      "It must be B", "I choose B.", "I think the answer is B.", "B is correct, and A is not.", "Option B is the right one",
      "A is wrong. C is false. So the answer should be B", "The answer is not A. It is B.", "It's B", "A man would say that it is B.",
      "The answer is B, not C.", "Answer: B, because C is wrong", "<think>The answer is A</think>The answer is B",
      "After weighing A and C, B", "The answer is B, and C is wrong.", "The answer is B and C fails.", "Answer: B, A man would say",
      "A) is out, B) is right", "B. The list was A) red B) blue C) green D) black.",
      "A) red\nB) blue\nC) green\nD) black\nThe answer is B",
      "A) red, B) blue, C) green, D) black. I go for B", "Unlike A, B is correct", "Not A, and B is right", "b", "(b)", "b)",
      "Neither A nor C is right, so B.", "It is neither A nor C. B it is.", "The answer is 'B'.", "The answer is \u2018B\u2019.",
      "The answer is _B_", "The answer is __B__", "The answer is A. No wait, B.", "B must be right since A, C and D fail"})
    EXPECT_EQ(letter(text), "B") << text;
  for (const char* text : {"A man walks into a bar.", "I do not know.", "I think that a man cannot know.", "Answer: B or C",
      "The answer is B and C.", "The answer is A, B", "The answer is a number.", "Answer: Bonn", "The answer is not B.",
      "Beyond all doubt", "It isn't B", "The answer is E.", "I'd say I'm lost", "", "Either A or B",
      "B or D is right", "B or D is right.", "Either B or D is correct.", "(B) or (D) is the answer", "Both B and D are right",
      "B and D are right.", "Both B and A are right", "B, C and D are correct", "B/D is right", "Option B or option D is right",
      "The answer is B or D as I said", "The answer is B and D as shown", "I choose B or C here", "\\boxed{B} or \\boxed{C} hold",
      "A) red B) blue C) green D) black", "A) red\nB) blue\nC) green\nD) black", "A. red\nB. blue\nC. green\nD. black",
      "(A) red (B) blue (C) green (D) black", "A: red, B: blue, C: green, D: black",
      "neither A nor B", "A fails. C fails. D fails.", "B cannot hold",
      "Option A: red. Option B: blue. Option C: green. Option D: black", "The choices: A) vitamin C B) vitamin A C) iron D) vitamin B",
      "**A)** red **B)** blue **C)** green **D)** black"})
    EXPECT_EQ(letter(text), "none") << text;
  EXPECT_EQ(letter("A) yes B) no", "AB"), "none");
  EXPECT_EQ(letter("The answer is (B).", "ABCDEFGHIJ"), "B");
  EXPECT_EQ(letter("The answer is I.", "ABCDEFGHIJ"), "I");
  EXPECT_EQ(letter("I do not know.", "ABCDEFGHIJ"), "none");
  EXPECT_EQ(letter("The answer is (E)", "ABCDE"), "E");
  EXPECT_EQ(choice_score("It is not in London but in Paris", {std::nullopt, "Paris"}, {"London", "Paris"}), 0) << "two texts are no choice";
  EXPECT_EQ(choice_score("Romeo knows", {'A', "Rome"}, {"Rome", "Bonn"}), 0) << "a text is words";
  EXPECT_EQ(choice_score("Definitely rome!", {'A', "Rome"}, {"Rome", "Bonn"}), 1);
  const std::vector<std::string> cities = {"London", "Paris", "Rome", "Bonn"};
  const ChoiceGold rome = choice_gold("C", cities);
  for (const char* text : {"Rome", "\\boxed{Rome}", "The answer is Rome.", "The answer is Rome, not Paris.",
      "Not Paris. \\boxed{\\text{Rome}}"})
    EXPECT_EQ(choice_score(text, rome, cities), 1) << text;
  for (const char* text : {"Paris", "The answer is Paris, not Rome.", "Rome or Paris", "Rome? \\boxed{Paris}", "the answer is unknown",
      "The answer is not Rome.", "It is certainly not Rome", "Rome was not built in a day"})
    EXPECT_EQ(choice_score(text, rome, cities), 0) << text;
  for (const char* text : {"The answer isn't Rome.", "It is not Rome", "Never Rome"})
    EXPECT_EQ(choice_score(text, choice_gold("Rome", cities), cities), 0) << text;
  const std::vector<std::string> numbers = {"-14", "14", "x+y", "x-y", "[1,2)", "(1,2]"};
  for (const auto& [text, gold, right] : {std::tuple("\\boxed{14}", "A", 0), {"\\boxed{14}", "B", 1}, {"\\boxed{x-y}", "C", 0},
           {"\\boxed{x-y}", "D", 1}, {"The answer is (1,2].", "E", 0}, {"\\boxed{\\sqrt{14}}", "B", 0}, {"Step 14 says nothing.", "B", 0}})
    EXPECT_EQ(choice_score(text, choice_gold(gold, numbers), numbers), right) << text << " " << gold;
  for (const char* text : {"The answer is: **D) cannot be determined**", "\\boxed{D} cannot be determined", "D cannot be determined",
      "We first see option B. The answer is (D) does not exist."})
    EXPECT_EQ(letter(text), "D") << text;
  std::string long_text;
  for (int i = 0; i < 20000; ++i) long_text += "answer is ( A or ";
  EXPECT_EQ(letter(long_text), "A");
}

TEST(Dapo, AnIntegerGoldIsExactAndAnotherIsText) {
  const std::string digits = "123456789012345678901234567890123456789";
  const std::vector<std::pair<std::string, std::string>> right = {{"9007199254740993", "9007199254740993"}, {digits, digits}, {digits,
      digits + ".000"}, {"-" + digits, "-" + digits}, {"0.5", "0.5"}, {"7", "007"}, {"0", "-0"}, {"18", "+18"}, {"1000", "1e3"}, {"1234",
      "1,234"}, {"0", "0.0"}, {"007", "007"}, {"007", "7"}, {"+18", "18"}, {"18.0", "18.0"}, {"-0", "0"}, {"34.", "34"}};
  const std::vector<std::pair<std::string, std::string>> wrong = {{"0", "0.5"}, {"9007199254740992", "9007199254740993"}, {digits,
      digits + "0"}, {"1", "1.5"}, {"-1", "-1.5"}, {"9223372036854775807", "9223372036854775808"}, {"3", "10/3"}, {"0", "0.999"}};
  for (const char* rule : {"dapo_slime", "dapo(integer_gold=true)"}) {
    for (const auto& [answer, gold] : right) EXPECT_EQ(grade(rule, "Answer: " + answer, gold), 1) << rule << " " << answer << " " << gold;
    for (const auto& [answer, gold] : wrong) EXPECT_EQ(grade(rule, "Answer: " + answer, gold), -1) << rule << " " << answer << " " << gold;
  }
}

}  // namespace
}  // namespace tandem::reward
