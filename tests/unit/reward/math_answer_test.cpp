// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/math_answer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tandem/reward/math/math_expr.h"

namespace tandem::reward {
namespace {

TEST(SameAnswer, MeaningCountsAndNotNotation) {
  const std::pair<const char*, const char*> same[] = {
      {"0.5", "\\frac{1}{2}"},
      {"\\dfrac12", "1/2"},
      {"1,000", "1000"},
      {"50\\%", "0.5"},
      {"50\\%", "50"},
      {"x = 5", "5"},
      {"$5$", "5"},
      {"5 \\text{ cm}", "5"},
      {"12 cm", "12"},
      {"90^\\circ", "90"},
      {"\\$18.90", "18.9"},
      {"1\\frac{1}{2}", "3/2"},
      {"1 1/2", "1.5"},
      {"\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"},
      {"2, 1", "1, 2"},
      {"\\{1, 2\\}", "\\{2,1\\}"},
      {"x+1", "1 + x"},
      {"2(x+1)", "2x+2"},
      {"\\sqrt{8}", "2\\sqrt{2}"},
      {"\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"},
      {"(x-2)(x+2)", "x^2-4"},
      {"[0, 1) \\cup (2, \\infty)", "(2,\\infty)\\cup[0,1)"},
      {"1 \\pm \\sqrt{2}", "1-\\sqrt{2}, 1+\\sqrt{2}"},
      {"-\\frac{1}{3}", "\\frac{-1}{3}"},
      {"2^{10}", "1024"},
      {"\\text{(C)}", "C"},
      {"\\text{Evelyn}", "Evelyn"},
      {"\\begin{pmatrix} 1 & 0.5 \\\\ 2 & 3 \\end{pmatrix}", "\\begin{pmatrix} 1 & \\frac12 \\\\ 2 & 3 \\end{pmatrix}"},
      {"3 + 2i", "2i+3"},
      {"y = 2x + 1", "2x - y + 1 = 0"},
      {"\\log_2 8", "3"},
      {"\\sin \\frac{\\pi}{6}", "1/2"},
      {"|-3|", "3"},
      {"5!", "120"},
      {"\\binom{5}{2}", "10"},
      {"0.333333333", "1/3"},
      {"\\sqrt[3]{27}", "3"},
      {"6 \\text{ and } 7", "6, 7"},
      {"11\\sqrt{2}", "11\\sqrt2"},
      {"e^{2}", "e^2"},
      {"10^{-2}", "0.01"},
      {"\\frac{1}{2}x", "x/2"},
      {"(4, \\frac{224}{2})", "(4,112)"},
      {"(20, 100)", "(20,100)"},
      {"(1,000, 2)", "(1000, 2)"},
      {"(1{,}000,2)", "(1000,2)"},
      {"1,000, 2,000", "2000, 1000"},
      {"[0,100)", "[0, \\frac{200}{2})"},
      {"\\frac{1,000}{3}", "\\frac{1000}{3}"},
      {"12{,}345", "12345"},
      {"5\\,m", "5"},
      {"5~\\text{m}", "5"},
      {"3 m^2", "3"},
      {"5inches", "5"}};
  for (const auto& [a, b] : same) {
    EXPECT_TRUE(same_answer(a, b)) << a << " and " << b;
    EXPECT_TRUE(same_answer(b, a)) << b << " and " << a;
  }
}

TEST(SameAnswer, DifferentThingsDiffer) {
  const std::pair<const char*, const char*> different[] = {{"5", "6"},
                                                           {"1, 2", "1, 3"},
                                                           {"(1,2)", "(2,1)"},
                                                           {"(1,2)", "[1,2]"},
                                                           {"x+1", "x+2"},
                                                           {"\\sqrt{2}", "1.414"},
                                                           {"0.33", "1/3"},
                                                           {"", "5"},
                                                           {"5", ""},
                                                           {"x^2", "x^3"},
                                                           {"12", "1,2"},
                                                           {"45.000001", "45"},
                                                           {"\\infty", "-\\infty"},
                                                           {"999999999999999999", "1000000000000000000"},
                                                           {"A", "B"},
                                                           {"1/0", "1/0.0"},
                                                           {"\\{1,2\\}", "\\{1,2,3\\}"},
                                                           {"1 \\pm 2", "1 + 2"},
                                                           {"50\\%", "5"},
                                                           {"Evelyn", "Evan"},
                                                           {"101_2", "101_3"},
                                                           {"20100", "(20,100)"},
                                                           {"20100", "[20,100)"},
                                                           {"20100", "\\{20,100\\}"},
                                                           {"(1,234)", "1234"},
                                                           {"3", "3m"},
                                                           {"4", "4in"},
                                                           {"3", "3m^2"}};
  for (const auto& [a, b] : different) EXPECT_FALSE(same_answer(a, b)) << a << " and " << b;
}

TEST(SameAnswer, HostileTextsEndSoon) {
  EXPECT_FALSE(same_answer(std::string(100000, '('), "1"));
  EXPECT_FALSE(same_answer(std::string(100000, '{') + "1", "1"));
  EXPECT_FALSE(same_answer("9^{9^{9^{9}}}", "1"));
  EXPECT_FALSE(same_answer("\\frac", "1"));
  EXPECT_FALSE(same_answer("\\sqrt[", "1"));
  EXPECT_FALSE(same_answer(std::string("\xFF\xFE"), "1"));
  std::string commas;
  for (int i = 0; i < 20000; ++i) commas += "1,";
  EXPECT_FALSE(same_answer(commas, "1"));
  std::string groups, nested;
  for (int i = 0; i < 5000; ++i) groups += "\\text{a}", nested += "(1,000, ";
  EXPECT_FALSE(same_answer(groups, "1"));
  EXPECT_FALSE(same_answer(nested + std::string(5000, ')'), "1"));

  // A gap must not be tried in every way: each of these took seconds to hours.
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string gap : {"\n", " ", "\n ", "** ", "answer is ", "####", "$", ". "}) {
    std::string gaps;
    while (gaps.size() < 200000) gaps += gap;
    for (const std::string before : {"answer:", "the answer is", "#### ", "answer is $", "answer", ""})
      for (const std::string after : {"", "x", "** 5"}) (void)final_answer(before + gaps + after);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// Each text is tried within a second and in little memory.
TEST(SameAnswer, NumbersOfAnySizeAreComparedExactlyAndSoon) {
  const std::string nines(300, '9'), many(1 << 20, '9');
  const std::pair<std::string, std::string> same[] = {{"10^{400}", "1" + std::string(400, '0')}, {"10^{-400}", "0." + std::string(399,
      '0') + "1"}, {nines, "10^{300}-1"},     {"100!/98!", "9900"},        {"\\binom{1000}{2}", "499500"}, {"10^{10^{10}}",
      "10^{10000000000}"}, {"1e400", "10^{400}"}, {"2^{1000}/2^{999}", "2"}, {"-" + nines + ".50", "-" + nines + "\\frac{1}{2}"}, {many,
      many}};
  const std::pair<std::string, std::string> different[] = {{"10^{400}", "10^{401}"}, {"10^{5000}", "10^{5001}"}, {"0", "10^{-400}"},
      {"0", "1e-10000"}, {nines, nines + "9"}, {nines + "1", nines + "2"}, {"10^{10^{10}}", "10^{10^{11}}"}, {"100!", "100!+1"},
      {"10^{-400}", "10^{-401}"}, {"10^{400}", "-10^{400}"}, {"10^{400}+1", "10^{400}"}, {"\\sqrt{2}\\cdot10^{-20}",
      "\\sqrt{3}\\cdot10^{-20}"}, {"10^{9999}x", "10^{9998}x"}, {"10^{-9999}x", "0"}, {"1000!", "1001!"}, {"9007199254740993",
      "9007199254740992"}, {many, many + "9"}, {"9^{9^{9^{9}}}", "9^{9^{9^{8}}}"}, {"((5!)!)!", "((6!)!)!"}, {"99999!", "99998!"}};
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [a, b] : same) EXPECT_TRUE(same_answer(a, b)) << a.substr(0, 50) << " and " << b.substr(0, 50);
  for (const auto& [a, b] : different) EXPECT_FALSE(same_answer(a, b)) << a.substr(0, 50) << " and " << b.substr(0, 50);
  std::string factorials = "1", wrapped = "1";
  for (int i = 0; i < 240; ++i) factorials += "+9999!";
  for (int i = 0; i < 3000; ++i) wrapped = "\\mathbf{" + wrapped + "}";
  EXPECT_FALSE(same_answer(factorials, factorials + "-1"));
  EXPECT_FALSE(same_answer(wrapped, "1"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// tests/unit/reward/data: 400 pairs in 40 kinds, half of them wrong, and pairs at the edges of what is read.
TEST(SameAnswer, NoWrongAnswerOfTheSetIsPaidAndAllRightOnesAre) {
  std::map<std::string, int> right, wrong;
  for (const char* name : {"answer_pairs.jsonl", "answer_edges.jsonl"}) {
    std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/unit/reward/data/" + name);
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json row = nlohmann::json::parse(line);
      const std::string gold = row["gold"], answer = row["answer"];
      const bool is_right = row["right"];
      ++(is_right ? right : wrong)[row.value("kind", "edges")];
      const auto given = final_answer("So we have \\boxed{" + answer + "}. That is all.");
      ASSERT_TRUE(given) << answer;
      EXPECT_EQ(same_answer(*given, gold), is_right) << gold << " and " << answer;
      EXPECT_EQ(same_answer(gold, *given), is_right) << "the other way: " << gold << " and " << answer;
    }
  }
  EXPECT_EQ(right.size(), 41);
  for (const auto& [kind, count] : right)
    EXPECT_TRUE(kind == "edges" || (count == 5 && wrong[kind] == 5)) << kind;
}

TEST(FinalAnswer, OfSeveralBoxesTheLastIsTheAnswerWhateverFollows) {
  const auto found = [](const std::string& text) { return final_answer(text).value_or("nothing"); };
  EXPECT_EQ(found("\\boxed{5}. The answer is 6."), "5");
  EXPECT_EQ(found("\\boxed{5} \n\nI hope that 7 of you agree.\n#### 8"), "5");
  EXPECT_EQ(found("First \\boxed{1}, then \\fbox{2}"), "1");
  EXPECT_EQ(found("It is \\fbox{2}, I think"), "2");
  EXPECT_EQ(found("\\boxed{x = \\boxed{3}}"), "3");
  EXPECT_EQ(found("\\boxed{\\{1, 2\\}}"), "\\{1, 2\\}");
  EXPECT_EQ(found("\\boxed{\\left\\{ x \\right.} of 3"), "\\left\\{ x \\right.");
  EXPECT_EQ(found("so \\boxed 7$ and more"), "7");
  EXPECT_EQ(found("\\boxed{ 4 }"), "4");
  EXPECT_EQ(found("\\boxed{4}\n\\boxed{4}"), "4") << "said twice";
  EXPECT_EQ(found("\\boxed{4} and \\boxed{4.}"), "4.") << "said twice";
  EXPECT_EQ(found("\\boxed{4} or \\boxed{5}"), "4, 5") << "both count";
  EXPECT_EQ(found("\\boxed{3}. I have put it in \\boxed{}."), "3") << "an empty box says nothing";
  EXPECT_EQ(found("I shall write \\boxed{}. The answer is 12."), "12");
  EXPECT_EQ(found("First \\boxed{1}. Then \\boxed{2"), "nothing") << "cut within its answer";
  EXPECT_EQ(found("The answer is 3. \\boxed{\\frac{1}{2}"), "nothing") << "cut within its answer";
}

TEST(FinalAnswer, SignsAndNamesOfBoxesCountAndThoughtsDoNot) {
  const auto found = [](const std::string& text) { return final_answer(text).value_or("nothing"); };
  EXPECT_EQ(found("x = -\\boxed{5}"), "-5");
  EXPECT_EQ(found("$-\\boxed{3+2}$"), "-(3+2)");
  EXPECT_EQ(found("7-\\boxed{5}"), "5") << "a difference";
  EXPECT_EQ(found("- \\boxed{5}"), "5") << "a point of a list";
  EXPECT_EQ(found("x=\\boxed{1}, y=\\boxed{2}"), "1, 2");
  EXPECT_EQ(found("$a = \\boxed{3}$ and $b_1 = \\boxed{5}$"), "3, 5");
  EXPECT_EQ(found("a = \\boxed{3}, so b = \\boxed{5}"), "5");
  EXPECT_EQ(found("<think>\\boxed{5}</think> The answer is 6."), "6");
  EXPECT_EQ(found("<think>It could be \\boxed{6}</think>The answer is 5."), "5");
  EXPECT_EQ(found("<think>\\boxed{6}</think>\n**5**"), "**5**");
  EXPECT_EQ(found("<think>\\boxed{5}</think> I used 3 steps."), "5") << "behind the thoughts there is no answer";
  EXPECT_EQ(found("<think>so it is \\boxed{5}</think>"), "5");
  EXPECT_EQ(found("The answer is 5, not 6."), "5");
  EXPECT_EQ(found("The answer is 5 rather than 6 or 7."), "5");
}

TEST(FinalAnswer, TheLastBoxWinsOverEverything) {
  EXPECT_EQ(final_answer("first \\boxed{1}, then \\boxed{\\frac{1}{2}} is 7"), "\\frac{1}{2}");
  EXPECT_EQ(final_answer("So the answer is 42.\n"), "42");
  EXPECT_EQ(final_answer("The final answer is $x+1$."), "$x+1$");
  EXPECT_EQ(final_answer("#### 18"), "18");
  EXPECT_EQ(final_answer("<think>9</think><answer>x+1</answer>"), "x+1");
  EXPECT_EQ(final_answer("we get 3 and then 1,234"), "1,234");
  EXPECT_EQ(final_answer("nothing"), std::nullopt);
  EXPECT_EQ(final_answer("The answer is:\n\n**42**\n\nBye"), "42");
  EXPECT_EQ(final_answer("The answer is 3. No, the answer is 4.5. Done"), "4.5");
  EXPECT_EQ(final_answer("answer: $1. 5$. Or so"), "$1. 5$");
}

TEST(SameAnswer, EveryAnswerOfTheMathSetsEqualsItself) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/../shared/data/math/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no ../shared";
  for (const char* name : {"math500.json", "math_train.json"}) {
    std::ifstream in(folder + name);
    const nlohmann::json rows = nlohmann::json::parse(in);
    std::string previous = "an answer of no problem";
    int equal_neighbours = 0;
    for (const auto& row : rows) {
      const std::string answer = row["answer"].is_string() ? row["answer"].get<std::string>() : row["answer"].dump();
      if (answer.empty()) continue;  // lost in the published set
      EXPECT_TRUE(same_answer(*final_answer("Hence \\boxed{" + answer + "}."), answer)) << answer;
      equal_neighbours += previous != answer && same_answer(previous, answer);
      previous = answer;
    }
    EXPECT_LT(equal_neighbours, 20) << name;
  }
}

TEST(MathAnswer, RelationsMeanTheirSolutions) {
  const auto same = [](const char* a, const char* b) { return same_answer(a, b); };
  EXPECT_TRUE(same("$x \\geq 5$", "x >= 5"));
  EXPECT_TRUE(same("5 \\le x", "x \\geq 5"));
  EXPECT_TRUE(same("-x > -1", "x < 1"));
  EXPECT_TRUE(same("2 < x \\leq 5", "(2, 5]"));
  EXPECT_TRUE(same("x \\in (2, 5]", "5 \\ge x > 2"));
  EXPECT_TRUE(same("x < 3", "(-\\infty, 3)"));
  EXPECT_TRUE(same("x \\neq 3", "x != 3"));
  EXPECT_FALSE(same("x > 5", "x \\geq 5"));
  EXPECT_FALSE(same("x > 5", "x < 5"));
  EXPECT_FALSE(same("x < 1", "-x < -1"));
  EXPECT_FALSE(same("[2, 5]", "(2, 5]"));
  EXPECT_FALSE(same("2 < x < 6", "(2, 5)"));
}

TEST(MathAnswer, AnEquationIsNotItsRightSideUnlessItAssigns) {
  EXPECT_TRUE(same_answer("x = 5", "5"));
  EXPECT_TRUE(same_answer("x = 2 + 3 = 5", "x = 5"));
  EXPECT_TRUE(same_answer("x = 1/3 \\approx 0.33", "1/3"));
  EXPECT_FALSE(same_answer("1", "2x + z = 1"));
  EXPECT_FALSE(same_answer("11a + c", "7 = 11a + c"));
}

TEST(MathAnswer, ListsAreWrittenInManyWays) {
  EXPECT_TRUE(same_answer("19, 46, \\text{ and } 82", "19, 46, and 82"));
  EXPECT_TRUE(same_answer("(7,11) or (11,7)", "(11,7)or(7,11)"));
  EXPECT_TRUE(same_answer("\\{-12, -11\\}", "-12;-11"));
  EXPECT_TRUE(same_answer("\\pm 2021", "{-2021, 2021}"));
  EXPECT_TRUE(same_answer("[\\begin{array}{cc}1&2\\\\3&4\\end{array}]", "\\begin{pmatrix}1 & 2 \\\\ 3 & 4\\end{pmatrix}"));
  EXPECT_FALSE(same_answer("1, 2, 3", "3"));
  EXPECT_FALSE(same_answer("2, 3", "2, 2, 3"));
}

TEST(MathAnswer, TheAnswerIsFoundWhereverItIsAnnounced) {
  const auto found = [](const char* text) { return final_answer(text).value_or("nothing"); };
  EXPECT_EQ(found("It is \\boxed{1} and \\boxed{2}."), "1, 2");
  EXPECT_EQ(found("First \\boxed{1}. Then we see that it is \\boxed{2}."), "2");
  EXPECT_EQ(found("Final Answer: The final answer is $28 \\%$. I hope it is correct."), "$28 \\%$");
  EXPECT_EQ(found("Final Answer: The largest $n$ is 34."), "34");
  EXPECT_EQ(found("Final Answer: Jane started growing 3 hours ago."), "3");
  EXPECT_EQ(found("so we have \\[ x = 4 \\]"), "x = 4");
  EXPECT_EQ(found("\\frac{10}{9}"), "\\frac{10}{9}");
}

TEST(FinalAnswer, ADollarSignIsMoneyWhereItBeginsNoFormula) {
  const auto found = [](const std::string& text) { return final_answer(text).value_or("nothing"); };
  const char* a_hundred_and_ten[] = {
      "The car costs $2640 and is paid over two years, so each month is $2640/24 = $110",
      "He pays $2640 in 24 rates.\nThat is $<<2640/24=110>>110 each, or $110 + $0 with fees.\n110",
      "She has $50.\n\n$60 more makes $50 + $60 = $110.",
      "50$ and 60$ make 50$ + 60$ = 110$",
      "It was \\$50, then \\$60 more, which makes 110",
      "Each costs $ 50, then $ 60 more: $ 110",
      "She pays $110 a month (she paid $60, now $50 more): $60 + $50 = $110, for 12 months",
      "Answer: $110. She paid $50 and $60 before."};
  for (const char* text : a_hundred_and_ten) EXPECT_TRUE(same_answer(found(text), "110")) << text << "\n" << found(text);
  EXPECT_EQ(found("It costs $5 per month, so $x = 3$ for all."), "x = 3");
  EXPECT_EQ(found("Each costs $5, $n$ of them cost $5n$ in total"), "5n");
  EXPECT_EQ(found("we see $ x = 4 $ here"), "x = 4");
  EXPECT_EQ(found("we see $x = 4 $ here"), "x = 4");
  EXPECT_EQ(found("hence $$\nx = 4\n$$\nfor all 7"), "x = 4");
  EXPECT_EQ(found("the set is $\\{1, 2\\}$ of 3"), "\\{1, 2\\}");
  EXPECT_EQ(found("a $3\\times$4 matrix, of rank $\\mathbb{R}^+$ or so"), "\\mathbb{R}^+");
  EXPECT_EQ(found("$12$ is it, of 13"), "12");
}

TEST(FinalAnswer, AnEquationInTheLastLineSaysItsResult) {
  const auto found = [](const char* text) { return final_answer(text).value_or("nothing"); };
  EXPECT_EQ(found("They walk two ways.\nThus they walk 60 + 75 = 135 miles to the 4 islands."), "135");
  EXPECT_EQ(found("Since 60 + 75 = 135\nthey see 4 islands."), "4");
  EXPECT_EQ(found("The number 6 = 2 * 3 has four divisors, 1, 2, 3 and 6 of them"), "6");
  EXPECT_EQ(found("We divide each side by 5:\n100/5 = 5A/5 or 20 = A."), "20") << "the unknown may stand on the right";
}

// The data set's own solutions with their answers. People write amounts in them as $5, and no LaTeX.
TEST(FinalAnswer, SolutionsOfGsm8kAreJudgedRight) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/../shared/data/gsm8k/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no ../shared";
  const auto without = [](std::string text, const std::string& open, const std::string& close) {
    for (size_t at; (at = text.find(open)) != std::string::npos;) text.erase(at, text.find(close, at) + close.size() - at);
    return text;
  };
  std::map<std::string, int> right, wrong;
  int count = 0;
  for (const char* name : {"train.jsonl", "test.jsonl"}) {
    std::ifstream in(folder + name);
    for (std::string line; std::getline(in, line); ++count) {
      const std::string solution = nlohmann::json::parse(line)["answer"];
      const size_t mark = solution.rfind("\n#### ");
      ASSERT_NE(mark, std::string::npos);
      const std::string gold = solution.substr(mark + 6), text = solution.substr(0, mark);
      for (const auto& [form, response] :
           {std::pair{"as it is", solution}, {"without ####", text + "\n" + gold}, {"without the answer", text}})
        for (const auto& [calculator, read] : {std::pair{"", response}, {", no <<>>", without(response, "<<", ">>")}}) {
          const std::string given = final_answer(read).value_or("");
          right[std::string(form) + calculator] += same_answer(given, gold);
          wrong[std::string(form) + calculator] += same_answer(given, gold + "7");
        }
    }
  }
  ASSERT_GT(count, 8000);
  for (const auto& [form, number] : right) EXPECT_GE(number, 0.99 * count) << form << ": " << number << " of " << count;
  for (const auto& [form, number] : wrong) EXPECT_LE(number, 0.001 * count) << form << ": " << number << " of " << count;
}

TEST(MathAnswer, ItIsKnownWhatWasRead) {
  EXPECT_TRUE(can_compare("3", "x = 4"));
  EXPECT_FALSE(can_compare("\\zeta(3)", "4")) << "an unknown function";
  EXPECT_FALSE(can_compare("", "4"));
}

}  // namespace
}  // namespace tandem::reward
