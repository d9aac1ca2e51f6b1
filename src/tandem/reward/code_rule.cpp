// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/code_rule.h"

#include <atomic>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/sandbox.h"
#include "tandem/reward/code_tests.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {

using nlohmann::ordered_json;

namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr const char* kCode = "code";
constexpr const char* kByReference = "passed by_reference";  // what judge.py says

SandboxLimits limits_of(const CodeOptions& o) {
  return {o.code_timeout_s, o.code_memory_mib * kMib, o.code_output_kib << 10, o.code_file_mib * kMib};
}

class CodeJudge {
 public:
  CodeJudge(const CodeOptions& o, const std::string& python, FileGuard guard)
      : sandbox_(python.empty() ? "python3" : python, limits_of(o), guard), share_(o.code_score == "share") {}

  void abandon() { ++num_abandoned_; }

  Score score(const Answer& answer) const {
    const std::vector<CodeTest> tests = code_tests(answer.gold);
    const std::optional<std::string> source = code_block(answer.response);
    const int64_t abandoned = num_abandoned_;
    size_t num_passed = 0, num_by_reference = 0;
    for (const CodeTest& test : tests) {
      if (!source) break;
      if (num_abandoned_ != abandoned) throw UserError(kCode, "the answer was given up", "the run is ending");
      const Outcome outcome = outcome_of(*source, test);
      if (outcome.passed) ++num_passed;
      if (outcome.by_reference) ++num_by_reference;
      if (!outcome.passed && (outcome.stopped || !share_)) break;  // a program at its limits once is at them again
    }
    const double share = static_cast<double>(num_passed) / static_cast<double>(tests.size());
    const double score = share_ ? share : num_passed == tests.size() ? 1.0 : 0.0;
    const double by_reference = static_cast<double>(num_by_reference) / static_cast<double>(tests.size());
    return {score, {{kCode, score}, {"code/passed", share}, {"code/by_reference", by_reference}}, source.value_or("")};
  }

 private:
  struct Outcome {
    bool passed = false;
    bool stopped = false;       // at a limit
    bool by_reference = false;  // passed by objects of the program, which only it can ask
  };

  Outcome outcome_of(const std::string& source, const CodeTest& test) const {
    Program program{source, test.input, "", test.asserts};
    if (!test.function.empty()) program.question = exact_text({{"call", test.function}, {"args", test.arguments}});
    const ProgramRun run = sandbox_.run(program);
    if (!run.finished) return {false, run.why.ends_with("limit")};
    if (!test.asserts.empty()) return {run.answer == "passed" || run.answer == kByReference, false, run.answer == kByReference};
    if (test.function.empty()) return {same_output(run.output, test.expected.get<std::string>())};
    const ordered_json answer = parse_exact(run.answer).value;
    return {answer.is_object() && answer.contains("value") && same_result(answer["value"], test.expected)};
  }

  Sandbox sandbox_;
  bool share_;
  std::atomic<int64_t> num_abandoned_ = 0;
};

}  // namespace

std::string code_guard_text(std::optional<int> version) {
  const int landlock = version ? *version : landlock_version();
  if (landlock >= kNeededLandlock) return join_text("Landlock ", landlock,
      ": a program reads the folders of Python and its own, and no other file");
  return join_text(landlock > 0 ? join_text("Landlock ", landlock) : "no Landlock", " (", kNeededLandlock,
                   " is needed, of Linux 6.2): a program may read every file that this user may, such as data with right answers");
}

void describe(OptionVisitor& field, CodeOptions& o) {
  field("code_timeout_s", o.code_timeout_s, "code: seconds a program may run, per test.", above(0));
  field("code_memory_mib", o.code_memory_mib, "code: memory a program may take.", at_least(64));
  field("code_output_kib", o.code_output_kib, "code: what a program may print.", at_least(1));
  field("code_file_mib", o.code_file_mib, "code: what a program may write to its private folder.", at_least(1));
  field("code_score", o.code_score, "code: 1 if all tests pass, or the share that does.", one_of({"all", "share"}));
  field("code_guard", o.code_guard,
        "code: what keeps a program from the files of this user. auto takes the strongest guard of this kernel, with a warning where it "
        "may read them; require refuses to run there (docs/design/sandbox.md).",
        one_of({"auto", "require"}));
}

std::unique_ptr<Rule> code_rule(const CodeOptions& options, const std::string& python, std::optional<int> landlock) {
  const bool is_strong = (landlock ? *landlock : landlock_version()) >= kNeededLandlock;
  if (!is_strong && options.code_guard == "require")
    throw UserError("reward.code_guard", "this kernel has " + code_guard_text(landlock),
        "Linux 6.2 or newer with Landlock on; or code_guard: auto");
  if (!is_strong)
    log::warning("reward.rule code: this kernel has ", code_guard_text(landlock), " (reward.code_guard: require refuses to run so)");
  const auto judge = std::make_shared<CodeJudge>(options, python, is_strong ? FileGuard::kAuto : FileGuard::kReadOnly);
  const auto score = [judge](const Answer& answer) { return judge->score(answer); };
  return std::make_unique<FunctionRule>(kCode, score, RuleNeeds{}, [judge] { judge->abandon(); });
}

}  // namespace tandem::reward
