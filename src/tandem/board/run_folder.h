// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run folder as the page asks about it. Each answer is JSON text; files may be missing or still growing.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tandem::board {

/// A page of a long list. `search` is a part of what is looked for, "" for all.
struct PageRequest {
  int64_t step = 0, page = 0;
  std::string search = {};
  std::string sort = {};  ///< "" (by number), lowest, highest, spread, longest
};

/// Answers of the evaluation of a step.
struct AnswersRequest {
  PageRequest page;
  std::optional<int64_t> since;  ///< step of the evaluation to compare with
  std::string show = {};         ///< "" (all), right, wrong, became_right, became_wrong
  std::optional<std::string> set = {};  ///< of this named set alone
};

/// Threads    any.
/// Blocking   on file reads alone; never on the run that writes.
/// Memory     bounded, whatever the files hold: kMaxLine_bytes, kMaxReply_bytes, and 8 bytes for each kLinesPerMark lines.
/// Errors     UserError if the folder does not exist, or for a word that is none of a request's. A file that is missing, half written or
///            broken gives an empty answer.
class RunFolder {
 public:
  explicit RunFolder(const std::string& folder);

  /// {name, folder, state, error, wrote_unix_s, saved_step, total_steps, config, summary, generation, num_lines}.
  /// State: "running" while a process holds the folder's lock. Else "finished" with a summary; "failed" or "stopped" where the log ends so,
  /// with the log's words as `error`; "killed" without any; "empty" where no run has begun. `saved_step` is that of the newest
  /// checkpoint, or null. total_steps are supervised.steps once the lines are those of `tandem sft`, else run.steps.
  std::string run();
  /// {generation, from, next, total, lines: [...]}: at most kMaxLines whole lines of metrics.jsonl, and kMaxReply_bytes. Lines that
  /// are longer than kMaxLine_bytes, or no JSON, are left out. `generation` changes when the file was cut back by a resume: then ask
  /// again from 0.
  std::string metrics(int64_t from_line);
  /// The newest step for Prometheus (prometheus.h). A metric of an evaluation stays until the next one, for kLinesPerMark steps at least:
  /// who asks now and then would miss it.
  std::string prometheus();
  /// {steps: [...]}: the last kTimelineSteps lines of timeline.jsonl (monitor/timeline_sink.h), as far as kMaxLine_bytes hold them.
  std::string timeline();
  /// {steps: [{step, groups, samples, score}], evals: [{step, prompts, answers, accuracy, score, sets: [{name, answers, accuracy,
  /// score}]}]}: accuracy is the share of answers that count as right, from the recipe's eval.right_at on; score is the mean. `sets` are
  /// those with names.
  std::string steps();
  /// {step, page, pages, found, groups: [...]}, kGroupsPerPage groups a page. A group has its `greedy` score where its step has greedy
  /// answers, else null.
  std::string samples(const PageRequest& request);
  /// {columns: [{name, values}]}: what each token of a response carries: the columns of data/schema.h, and train_logprobs. Errors:
  /// UserError if the step has no such sample. `sample` counts from 0 within its group.
  std::string tokens(int64_t step, int64_t group, int64_t sample);
  /// {step, page, pages, found, right_at, counts: {answers, right, compared, became_right, became_wrong}, answers: [{row, set,
  /// question, prompt, answer, response, score, right, before}]}. `question` is "" where the file has none. `before` is {response, score,
  /// right} of the earlier evaluation, or null.
  std::string evals(const AnswersRequest& request);

  static constexpr int64_t kMaxLines = 4000;
  static constexpr int64_t kMaxLine_bytes = int64_t{1} << 18;
  static constexpr int64_t kMaxReply_bytes = int64_t{1} << 23;
  static constexpr int64_t kMaxFile_bytes = int64_t{1} << 22;  ///< of config.yaml and summary.json; larger ones count as missing
  static constexpr int64_t kLinesPerMark = 256;
  static constexpr int64_t kTimelineSteps = 8;
  static constexpr int64_t kGroupsPerPage = 32;
  static constexpr int64_t kAnswersPerPage = 64;

 private:
  void index_new_lines();
  std::string bytes_of_last_line() const;
  struct State {
    const char* name;
    std::string error = {};
  };
  State state() const;
  std::string path(const char* name) const { return folder_ + "/" + name; }

  std::string folder_;
  std::mutex mutex_;          ///< guards what follows
  std::vector<int64_t> marks_;   ///< where lines 0, kLinesPerMark, ... begin
  int64_t num_lines_ = 0, end_bytes_ = 0;  ///< of the whole lines that were seen
  int64_t last_begin_bytes_ = 0;
  std::string last_line_;     ///< its beginning, as indexed; when the file says otherwise, it was rewritten
  int64_t generation_ = 0;
};

}  // namespace tandem::board
