// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "python_file.h"
#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/reward/rule.h"
#include "tandem/reward/scorer.h"

namespace tandem::reward {
namespace {

namespace fs = std::filesystem;
using test::error_of;

std::unique_ptr<Rule> rule_of(const PythonFile& file, Options options = {}) {
  options.python = file.path() + ":score";
  return make_reward(options);
}

std::vector<Answer> answers_of(std::vector<std::string> responses) {
  std::vector<Answer> answers;
  for (std::string& response : responses) {
    Answer answer{std::move(response), "7"};
    answer.prompt = "3+4=";
    answer.data_source = "sums";
    answer.columns = R"({"level": 3, "extra_info": {"hint": "carry"}})";
    answer.group = 5;
    answers.push_back(std::move(answer));
  }
  return answers;
}

bool alive(pid_t pid) { return kill(pid, 0) == 0; }

bool ends_soon(pid_t pid) {
  for (int i = 0; i < 500 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return !alive(pid);
}

pid_t pid_in(const fs::path& file) {
  pid_t pid = 0;
  for (int i = 0; i < 1000 && pid == 0; ++i) {
    std::ifstream(file) >> pid;
    if (pid == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return pid;
}

TEST(PythonRule, AFunctionOfTrlsFormSeesTheBatchAndTheColumnsOfItsRows) {
  const PythonFile file(R"(
def score(prompts, completions, answers, level, truncated, **columns):
    assert prompts == ["3+4="] * 3 and level == [3] * 3 and columns["extra_info"][0] == {"hint": "carry"}, columns
    assert truncated == [False] * 3 and columns["data_sources"] == ["sums"] * 3
    return [{"score": 1.5, "near": 0.25, "pred": "seven"} if c == a else (None if c == "" else 0)
            for c, a in zip(completions, answers)]
)");
  const std::vector<Score> scores = rule_of(file)->score_batch(answers_of({"7", "8", ""}));
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0].score, 1.5);
  EXPECT_EQ(scores[0].extracted, "seven");
  const std::vector<std::pair<std::string, double>> parts = {{"python/score", 1.5}, {"python/score/near", 0.25}};
  EXPECT_EQ(scores[0].parts, parts);
  EXPECT_EQ(scores[1].score, 0);
  EXPECT_EQ(scores[1].parts.size(), 1u);
  EXPECT_TRUE(scores[2].parts.empty()) << "None: the function does not apply";
}

TEST(PythonRule, AFunctionOfVerlsFormSeesOneAnswerAtATime) {
  const PythonFile file(R"(
def score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth) + 0.5 * (extra_info["hint"] == "carry") + 0.25 * (data_source == "sums")
)");
  const std::vector<Score> scores = rule_of(file)->score_batch(answers_of({"7", "8"}));
  EXPECT_EQ(scores.at(0).score, 1.75);
  EXPECT_EQ(scores.at(1).score, 0.75);
}

TEST(PythonRule, WhatTheFunctionPrintsCannotBreakTheProtocol) {
  const PythonFile file(R"(
import os, subprocess, sys
print("loading")
def score(completions):
    os.write(1, b"\x00" * 8 + b"{\"scores\": []}\n")
    sys.stderr.write("x" * 300000)
    subprocess.run(["echo", "from a child"])
    return [len(c) for c in completions]
)");
  const fs::path log = file.folder() / "log.txt";
  log::quiet(true);
  log::also_to_file(log.string());
  const auto rule = rule_of(file);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rule->score({"four", ""}).score, 4);
  log::stop_file();
  log::quiet(false);
  std::ifstream in(log);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  EXPECT_NE(text.find("worker 0: loading"), std::string::npos);
  EXPECT_NE(text.find("bytes of its output are left out"), std::string::npos);
  EXPECT_LT(text.size(), 600000u);
}

TEST(PythonRule, AnErrorNamesItsPlaceAndShowsTheTraceback) {
  const PythonFile file("import math\n\ndef half(x):\n    return 1 / x\n\ndef score(completions):\n    return [half(0)]\n");
  const auto rule = rule_of(file);
  testing::internal::CaptureStderr();
  const std::string error = error_of([&] { rule->score({"a", "b"}); });
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("ZeroDivisionError: division by zero at " + file.path() + ":4 in half"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  EXPECT_NE(shown.find("Traceback (most recent call last)"), std::string::npos) << shown;
  EXPECT_NE(shown.find("return [half(0)]"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("<string>"), std::string::npos) << "frames of the worker itself: " << shown;
}

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

data::Group group_of(int64_t id, int64_t samples) {
  data::Group group;
  group.id = GroupId{id};
  group.prompt.columns = R"({"question": "3+4?", "level": 3})";
  group.samples.resize(static_cast<size_t>(samples));
  return group;
}

TEST(PythonRule, AFailureIsShownOnceWhateverTheWorkersAndSamples) {
  const PythonFile file("def score(completions, **row):\n    return [row['nope'] for c in completions]\n");
  Options options;
  options.workers = 3;
  const auto rule = rule_of(file, options);
  testing::internal::CaptureStderr();
  {
    Scorer scorer(*rule, {.workers = 3, .zero_on_error = true});
    for (int64_t id = 0; id < 9; ++id) scorer.submit(group_of(id, 4));
    for (const data::Group& group : scorer.collect_all(60))
      for (const data::Sample& sample : group.samples) EXPECT_EQ(sample.parts.at(0).first, kFailedPart);
  }
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_EQ(occurrences(shown, "Traceback (most recent call last)"), 1) << shown;
  EXPECT_EQ(occurrences(shown, "grading failed"), 1) << shown;
  for (const char* part : {"KeyError: 'nope' at ", "rewards.py:2 in ", "failed for 4 of 4 samples", "in the call for a group of 4 answers",
                           "a function may take prompts, completions, answers", "the columns of the data set: level, question"})
    EXPECT_NE(shown.find(part), std::string::npos) << part << " in " << shown;
}

TEST(PythonRule, EachKindOfFailureIsShown) {
  const PythonFile file("def score(completions):\n    if completions[0] == 'a':\n        raise KeyError(1)\n    raise ValueError(2)\n");
  const auto rule = rule_of(file);
  testing::internal::CaptureStderr();
  for (const char* text : {"a", "b", "a", "b"}) EXPECT_NE(error_of([&] { rule->score({text, ""}); }), "");
  EXPECT_EQ(occurrences(testing::internal::GetCapturedStderr(), "Traceback"), 2);
}

TEST(PythonRule, AFunctionOfOneAnswerSaysForHowManyItFails) {
  const PythonFile file("def score(solution_str, ground_truth):\n    return 1 / len(solution_str)\n");
  const std::string error = error_of([&] { rule_of(file)->score_batch(answers_of({"7", "", "8", "", ""})); });
  for (const char* part : {"ZeroDivisionError: ", "rewards.py:2 in score, for 3 of 5 answers, first ''",
                           "may take data_source, solution_str, ground_truth", "the columns of the data set: level"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
}

TEST(PythonRule, AFunctionOfAGroupSaysWhichAnswersFailAlone) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"return [1 / len(c) for c in completions]",
       "in the call for a group of 3 answers; called with one answer at a time it fails for 1 of 3 answers, ''"},
      {"return [1] if completions[1:] else [0]", "in the call for a group of 3 answers; called with one answer at a time it does not fail"},
      {"if len(completions) == 1: raise SystemExit\n    raise ValueError", "ValueError at "},
      {"raise ValueError", "for 3 of 3 answers, first '7'"}};
  for (const auto& [body, which] : cases) {
    const PythonFile file("def score(completions):\n    " + body + "\n");
    const std::string error = error_of([&] { rule_of(file)->score_batch(answers_of({"7", "", "8"})); });
    EXPECT_NE(error.find(which), std::string::npos) << which << " in " << error;
    EXPECT_EQ(error.find(") ("), std::string::npos) << "one remedy: " << error;
  }
}

TEST(PythonRule, ASlowCallForAGroupIsNotMadeAgain) {
  const PythonFile file("import time\ndef score(completions):\n    time.sleep(0.2)\n    raise ValueError(len(completions))\n");
  const std::string error = error_of([&] { rule_of(file)->score_batch(answers_of({"7", "8"})); });
  EXPECT_NE(error.find("ValueError: 2 at "), std::string::npos) << error;
  EXPECT_NE(error.find("in the call for a group of 2 answers (a function"), std::string::npos) << error;
}

TEST(PythonRule, AnErrorShowsBothEndsOfALongAnswer) {
  const PythonFile file("def score(solution_str):\n    return int(solution_str)\n");
  const std::string error = error_of([&] { rule_of(file)->score_batch(answers_of({"begin" + std::string(9000, 'x') + "end"})); });
  EXPECT_NE(error.find("for 1 of 1 answers, 'beginxx"), std::string::npos) << error;
  EXPECT_NE(error.find("xxend'"), std::string::npos) << error;
}

TEST(PythonRule, AMisspeltArgumentIsToldWhatMayBeMeant) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"anwsers", "`answers`"}, {"completion", "`completions`"}, {"levle", "`level`"}};
  for (const auto& [wrong, right] : cases) {
    const PythonFile file("def score(completions, " + wrong + "):\n    return [0]\n");
    const std::string error = error_of([&] { rule_of(file)->score_batch(answers_of({"7"})); });
    EXPECT_NE(error.find("did you mean " + right + "?"), std::string::npos) << error;
  }
  const PythonFile file("def score(completions, weather):\n    return [0]\n");
  EXPECT_EQ(error_of([&] { rule_of(file)->score_batch(answers_of({"7"})); }).find("did you mean"), std::string::npos);
}

TEST(PythonRule, UnderZeroAnAnswerThatFailsAloneIsTheOnlyOneCounted) {
  const PythonFile file("def score(completions):\n    return [1 / (c != 'bad') for c in completions]\n");
  const auto rule = rule_of(file);
  data::Group group = group_of(1, 8);
  group.samples[3].text = "bad";
  testing::internal::CaptureStderr();
  {
    Scorer scorer(*rule, {.workers = 1, .zero_on_error = true});
    scorer.submit(std::move(group));
    scorer.collect_all(60);
  }
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_NE(shown.find("grading failed for 1 of 8 samples"), std::string::npos) << shown;
  EXPECT_NE(shown.find("for 1 of 8 answers, 'bad'"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("8 of 8"), std::string::npos) << shown;
}

TEST(PythonRule, AnErrorHasALineOfTheUsersFileWhereverItWasRaised) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"import json\ndef score(completions):\n    return [json.loads('{') for c in completions]\n", "rewards.py:3 in "},
      {"\n\ndef score(completions):\n    return [1]\n", "rewards.py:3 in score, in the call for a group of 2 answers"},
      {"\ndef score(completions, wish):\n    return [1]\n", "rewards.py:2 in score"},
      {"def score(completions):\n    return [1]\n\nx = (\n", "rewards.py:4"},
  };
  for (const auto& [source, place] : cases) {
    const PythonFile file(source);
    testing::internal::CaptureStderr();
    const std::string error = error_of([&] { rule_of(file)->score_batch(answers_of({"a", "b"})); });
    testing::internal::GetCapturedStderr();
    EXPECT_NE(error.find(place), std::string::npos) << place << " in " << error;
  }
}

TEST(PythonRule, APartThatIsNoNumberIsSaidOnce) {
  const PythonFile file("def score(completions):\n    return [{'score': 1, 'why': 'short', 'pred': c} for c in completions]\n");
  testing::internal::CaptureStderr();
  {
    const auto rule = rule_of(file);
    for (int i = 0; i < 2; ++i) {
      const std::vector<Score> scores = rule->score_batch(answers_of({"a", "b"}));
      EXPECT_EQ(scores[1].score, 1);
      EXPECT_EQ(scores[1].extracted, "b");
      EXPECT_EQ(scores[1].parts.size(), 1u) << "the score itself";
    }
  }
  const std::string shown = testing::internal::GetCapturedStderr();
  const size_t first = shown.find("part `why` of a score is no number, and is left out: \"'short'\"");
  EXPECT_NE(first, std::string::npos) << shown;
  EXPECT_EQ(shown.find("part `", first + 1), std::string::npos) << shown;
}

TEST(PythonRule, WrongResultsAreErrorsThatSayWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"return [1, 2]", "returned 2 scores for 1 completions"},
      {"return ['good']", "the score is 'good', which is no number"},
      {"return [float('nan')]", "which is not finite"},
      {"return [{'score': 1, 'part': float('inf')}]", "part `part` is inf, which is not finite"},
      {"return [{'score': 'good'}]", "the score is 'good', which is no number"},
      {"return [{'score': None, 'part': 1}]", "the score is None, which is no number"},
      {"return [{'pred': 'b'}]", "the score is \"{'pred': 'b'}\", which holds no number"},
      {"return 3", "returned 3, expected a list with a score for each of the 1 completions"},
  };
  for (const auto& [body, expected] : cases) {
    const PythonFile file("def score(completions):\n    " + body + "\n");
    const auto rule = rule_of(file);
    const std::string error = error_of([&] { rule->score({"a", "b"}); });
    EXPECT_NE(error.find(expected), std::string::npos) << body << ": " << error;
  }
}

TEST(PythonRule, WhatCannotWorkIsFoundAtTheStart) {
  const PythonFile broken("def score(completions)\n    pass\n"), other("def reward(completions):\n    pass\n");
  const PythonFile leaves("import sys; sys.exit(3)\n"), hard("import os; os._exit(4)\n");
  const PythonFile good("def score(completions, wish):\n    return [0]\n");
  EXPECT_NE(error_of([&] { rule_of(broken); }).find("SyntaxError"), std::string::npos);
  const std::string missing = error_of([&] { rule_of(other); });
  EXPECT_NE(missing.find("no function `score`; the file's functions: `reward`"), std::string::npos) << missing;
  EXPECT_NE(error_of([&] { rule_of(leaves); }).find("SystemExit: 3"), std::string::npos);
  EXPECT_NE(error_of([&] { rule_of(hard); }).find("exit code 4"), std::string::npos);
  Options options;
  options.python_executable = "no-such-python";
  const std::string python = error_of([&] { rule_of(good, options); });
  EXPECT_NE(python.find("reward.python_executable"), std::string::npos) << python;
  EXPECT_NE(python.find("no-such-python"), std::string::npos) << python;
  options = {};
  options.python = "nowhere.py:score";
  EXPECT_NE(error_of([&] { make_reward(options); }).find("no file nowhere.py"), std::string::npos);
  options.python = good.path();
  EXPECT_NE(error_of([&] { make_reward(options); }).find("names no function"), std::string::npos);
  const auto rule = rule_of(good);
  const std::string wish = error_of([&] { rule->score({"a", "b"}); });
  EXPECT_NE(wish.find("the function wants `wish`, which is neither"), std::string::npos) << wish;
}

TEST(PythonRule, AWorkerThatDiesIsReplacedAndItsBatchTriedAgain) {
  const PythonFile file(R"(
import os
def score(completions):
    mark = os.path.join(os.path.dirname(__file__), "died")
    if completions[0] == "once" and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), 11)
    if completions[0] == "always":
        os._exit(9)
    return [1 for _ in completions]
)");
  const auto rule = rule_of(file);
  EXPECT_EQ(rule->score({"once", ""}).score, 1);
  EXPECT_TRUE(fs::exists(file.folder() / "died"));
  const std::string error = error_of([&] { rule->score({"always", ""}); });
  EXPECT_NE(error.find("failed 2 times with one batch: it ended with exit code 9"), std::string::npos) << error;
  EXPECT_EQ(rule->score({"fine", ""}).score, 1) << "the rule works on";
}

TEST(PythonRule, AWorkerThatHangsIsStoppedAndReplaced) {
  const PythonFile file(R"(
import time
def score(completions):
    while completions[0] == "hang":
        try:
            time.sleep(1000)
        except BaseException:
            pass
    return [1 for _ in completions]
)");
  Options options;
  options.timeout_s = 0.5;
  options.python_retries = 0;
  const auto rule = rule_of(file, options);
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([&] { rule->score({"hang", ""}); });
  EXPECT_NE(error.find("it gave no answer in time"), std::string::npos) << error;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(rule->score({"fine", ""}).score, 1);
}

TEST(PythonRule, RandomNumbersOfAGroupAreTheSameInEveryWorkerAndRun) {
  const PythonFile file("import random\ndef score(completions):\n    return [random.random() + hash(c) % 7 for c in completions]\n");
  std::vector<double> first;
  for (int run = 0; run < 2; ++run) {
    const auto rule = rule_of(file);
    if (run == 1) rule->score({"another batch before", ""});
    std::vector<double> drawn;
    for (const Score& score : rule->score_batch(answers_of({"a", "b", "c"}))) drawn.push_back(score.score);
    if (run == 0) first = drawn;
    EXPECT_EQ(drawn, first);
  }
}

TEST(PythonRule, BatchesRunSideBySideInAsManyWorkersAsThereAre) {
  // A batch ends only when three have begun.
  const test::TemporaryFolder begun("side_by_side_");
  const PythonFile file("import os, time\ndef score(completions):\n    folder = '" + begun.path() + R"('
    open(folder + '/' + str(os.getpid()), 'w').close()
    for _ in range(1500):
        if len(os.listdir(folder)) >= 3:
            return [1 for _ in completions]
        time.sleep(0.01)
    raise RuntimeError('the other workers never came')
)");
  Options options;
  options.workers = 3;
  const auto rule = rule_of(file, options);
  Scorer scorer(*rule, {3});
  for (int64_t id = 0; id < 9; ++id) {
    data::Group group;
    group.id = GroupId{id};
    group.samples.resize(2);
    scorer.submit(std::move(group));
  }
  for (int64_t id = 0; id < 9; ++id) {
    const auto group = scorer.collect(Deadline::after_s(60));
    ASSERT_TRUE(group);
    EXPECT_EQ(value(group->id), id);
  }
}

TEST(PythonRule, TheEndOfAScorerDoesNotWaitForASlowFunction) {
  const PythonFile file("import time\ndef score(completions):\n    time.sleep(100)\n    return [0]\n");
  const auto rule = rule_of(file);
  const auto begin = std::chrono::steady_clock::now();
  {
    Scorer scorer(*rule, {1});
    data::Group group;
    group.samples.resize(1);
    scorer.submit(std::move(group));
    EXPECT_FALSE(scorer.collect(Deadline::after_s(0.3)));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(PythonRule, WorkersEndWithTheRunHoweverItEnds) {
  const PythonFile file(R"(
import os, time
with open(os.path.join(os.path.dirname(__file__), "pid"), "w") as out:
    out.write(f"{os.getpid()}\n")
def score(completions):
    time.sleep(1000)
)");
  const pid_t run = fork();  // a process of its own, to be killed
  if (run == 0) {
    const auto rule = rule_of(file);
    rule->score({"", ""});
    _exit(1);
  }
  const pid_t worker = pid_in(file.folder() / "pid");
  ASSERT_GT(worker, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(alive(worker));
  kill(run, SIGKILL);
  waitpid(run, nullptr, 0);
  EXPECT_TRUE(ends_soon(worker));
}

// Starts processes that detach themselves in the ways there are, and writes down their numbers.
constexpr const char* kLeavesProcesses = R"(
import os, signal, subprocess, sys, time
here = os.path.dirname(os.path.abspath(__file__))
def note():
    with open(os.path.join(here, "left"), "a") as out:
        out.write(f"{os.getpid()}\n")
def daemon(depth):
    for s in range(1, 32):
        if s not in (9, 17, 19):
            signal.signal(s, signal.SIG_IGN)
    os.setsid()
    if os.fork():
        os._exit(0)
    if depth:
        if os.fork() == 0:
            daemon(depth - 1)
    note()
    while True:
        time.sleep(1)
if os.fork() == 0:
    daemon(3)
subprocess.Popen(["sh", "-c", f"echo $$ >> {here}/left; exec sleep 1000"], start_new_session=True, close_fds=True)
while not os.path.exists(os.path.join(here, "left")) or len(open(os.path.join(here, "left")).readlines()) < 5:
    time.sleep(0.01)
with open(os.path.join(here, "pid"), "w") as out:
    out.write(f"{os.getpid()}\n")
def score(completions):
    if completions[0] == "hang":
        time.sleep(1000)
    if completions[0] == "end":
        os._exit(3)
    if completions[0] == "kill":
        os.kill(os.getpid(), 9)
    return [1]
)";

std::vector<pid_t> left_in(const PythonFile& file) {
  std::vector<pid_t> left;
  std::ifstream in(file.folder() / "left");
  for (pid_t pid = 0; in >> pid;) left.push_back(pid);
  return left;
}

TEST(PythonRule, NoProcessThatAFunctionStartedOutlivesItsWorker) {
  for (const char* how : {"well", "hang", "end", "kill"}) {
    const PythonFile file(kLeavesProcesses);
    Options options;
    options.timeout_s = 1;
    options.python_retries = 0;
    std::vector<pid_t> left;
    {
      const auto rule = rule_of(file, options);
      left = left_in(file);
      ASSERT_EQ(left.size(), 5u);
      for (const pid_t pid : left) EXPECT_TRUE(alive(pid)) << "while the worker lives, so may they";
      const std::string error = error_of([&] { rule->score({how, ""}); });
      EXPECT_EQ(error.empty(), how == std::string("well")) << error;
      const std::string said = how == std::string("end") ? "exit code 3" : how == std::string("kill") ? "signal 9" : "";
      EXPECT_NE(error.find(said), std::string::npos) << error;
    }
    for (const pid_t pid : left) EXPECT_FALSE(alive(pid)) << how;
  }
}

TEST(PythonRule, NoProcessThatAFunctionStartedOutlivesARunThatIsKilled) {
  for (const char* how : {"well", "hang"}) {
    const PythonFile file(kLeavesProcesses);
    const pid_t run = fork();
    if (run == 0) {
      const auto rule = rule_of(file);
      rule->score({how, ""});
      for (;;) pause();
    }
    const pid_t worker = pid_in(file.folder() / "pid");
    ASSERT_GT(worker, 0);
    const std::vector<pid_t> left = left_in(file);
    ASSERT_EQ(left.size(), 5u);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kill(run, SIGKILL);
    waitpid(run, nullptr, 0);
    EXPECT_TRUE(ends_soon(worker));
    for (const pid_t pid : left) EXPECT_TRUE(ends_soon(pid)) << how;
  }
}

TEST(PythonRule, AFunctionHasTheMemoryItIsGivenAndNoMore) {
  const PythonFile file(R"(
import os
def score(completions):
    if completions[0] == "child":
        if os.fork() == 0:
            try:
                bytearray(1 << 30)
            except MemoryError:
                os._exit(7)
            os._exit(0)
        return [os.waitstatus_to_exitcode(os.wait()[1])]
    return [len(bytearray(int(completions[0]) << 20)) >> 20]
)");
  Options options;
  options.python_memory_mib = 256;
  const auto rule = rule_of(file, options);
  EXPECT_EQ(rule->score({"100", ""}).score, 100);
  const std::string error = error_of([&] { rule->score({"1000", ""}); });
  EXPECT_NE(error.find("MemoryError"), std::string::npos) << error;
  EXPECT_NE(error.find("rewards.py:12 in score"), std::string::npos) << error;
  EXPECT_NE(error.find("reward.python_memory_mib"), std::string::npos) << error;
  EXPECT_EQ(rule->score({"100", ""}).score, 100) << "the worker goes on";
  EXPECT_EQ(rule->score({"child", ""}).score, 7) << "what it starts has no more";
  options.python_memory_mib = 0;
  EXPECT_EQ(rule_of(file, options)->score({"1000", ""}).score, 1000);
}

// The channel is a descriptor like another, and a library may write to it by mistake.
TEST(PythonRule, WhatAFunctionWritesToTheChannelIsRefused) {
  const PythonFile file(R"(
import os, struct
def score(completions):
    data = completions[0].encode()
    os.write(3, struct.pack("<Q", len(data) if data[:1] in b"{[" else int(data)) + data)
    os._exit(0)
)");
  Options options;
  options.python_retries = 0;
  const auto rule = rule_of(file, options);
  for (const char* said : {"{}", R"({"scores": 1})", R"({"scores": {"a": 1}})", R"({"scores": [[]]})", R"({"error": 1, "traceback": []})",
                           R"({"scores": [[1, {"x": "y"}, ""]]})", "[1]", "9223372036854775807", "60000000"})
    EXPECT_NE(error_of([&] { rule->score({said, ""}); }), "") << said;
  EXPECT_NE(error_of([&] { rule->score({"{\"scores\":" + std::string(5000, '[') + std::string(5000, ']') + "}", ""}); }), "");
}

TEST(PythonRule, RulesMayBeCombined) {
  const PythonFile file("def score(completions):\n    return [len(c) for c in completions]\n");
  Options options;
  options.rules = {"python(python=" + file.path() + ":score)=0.5", "exact=2"};
  const std::vector<Score> scores = make_reward(options)->score_batch(answers_of({"7", "12"}));
  EXPECT_EQ(scores[0].score, 2.5);
  EXPECT_EQ(scores[1].score, 1);
  EXPECT_EQ(scores[0].parts.size(), 2u);
}

std::unique_ptr<Rule> installed(const std::string& spec) {
  try {
    return make_rule(spec);
  } catch (const UserError& e) {
    if (std::string(e.what()).find("pip install math-verify") == std::string::npos) throw;
    return nullptr;
  }
}

TEST(MathVerifyRule, ThePackageDecides) {
  const auto rule = installed("math_verify");
  if (!rule) GTEST_SKIP() << "math-verify is not installed; scripts/setup does";
  EXPECT_EQ(rule->score({"so $x = \\int_0^1 2t\\,dt = 1$, it is \\boxed{\\frac{2}{4}}", "\\frac12"}).score, 1);
  EXPECT_EQ(rule->score({"\\boxed{2}", "3"}).score, 0);
  EXPECT_EQ(rule->score({"", "3"}).score, 0);
}

TEST(MathVerifyRule, MathAsksItWhereItReadsNoAnswer) {
  const auto rule = installed("math(fallback=math_verify)");
  if (!rule) GTEST_SKIP() << "math-verify is not installed; scripts/setup does";
  const std::string sum = "\\boxed{\\sum_{k=1}^{4} k}";
  EXPECT_EQ(make_rule("math")->score({sum, "10"}).score, 0) << "ours knows no sums";
  const Score score = rule->score({sum, "10"});
  EXPECT_EQ(score.score, 1);
  EXPECT_EQ(score.parts, (std::vector<std::pair<std::string, double>>{{"math", 1.0}}));
  EXPECT_EQ(rule->score({"\\boxed{7}", "10"}).score, 0);
}

}  // namespace
}  // namespace tandem::reward
