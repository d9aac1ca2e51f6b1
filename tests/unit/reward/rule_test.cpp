// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/rule.h"

#include <gtest/gtest.h>

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

TEST(Rule, SimpleRulesGradeAsNamed) {
  EXPECT_EQ(grade("exact", " 42\n", "42"), 1);
  EXPECT_EQ(grade("exact", "42.", "42"), 0);
  EXPECT_EQ(grade("number", "12+30 is 1,042", "1042"), 1);
  EXPECT_EQ(grade("number", "so 18.0", "18"), 1);
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

TEST(Rule, IllFormedBytesAreNoError) {
  for (const std::string& name : rule_names()) {
    EXPECT_NO_THROW(grade(name, "\xF0\x9F 7 \xFF", "7")) << name;
  }
}

}  // namespace
}  // namespace tandem::reward
