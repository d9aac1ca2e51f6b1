// SPDX-License-Identifier: Apache-2.0
#pragma once
// samples.sqlite: every sample a run trained on and every answer of its evaluations. Written by the run; read by the page
// of the run, by --replay, and by anybody with an SQL shell.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/data/sample.h"

struct sqlite3;

namespace tandem::data {

struct EvalAnswer {
  int64_t row = 0;  ///< row in the evaluation data set
  std::string prompt, answer, response;
  double score = 0;
  std::string set = {};  ///< its name, as data.eval has it; "" where the set has none
  std::string question = {};  ///< what a person would read of the prompt; "" in files of an older Tandem
};

struct CloseDatabase {
  void operator()(sqlite3* database) const;
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

/// Which steps keep the tokens of their samples, with their texts, log-probabilities, versions and routes: the last ones, and each
/// `every_steps`-th. The rest of a row stays for every step.
struct KeptTokens {
  int64_t last_steps = 0;  ///< 0: all steps
  int64_t every_steps = 10;
};

/// Writes. One transaction per call, in write-ahead mode, so that readers of other processes never wait. On a file system that several
/// machines share there is no write-ahead log, which needs shared memory: readers and the writer wait for each other there.
///
/// Threads    one at a time.
/// Blocking   a call waits for the disk cache, and a fraction of a second for another writer; flush() for the disk.
/// Errors     UserError if the file cannot be opened or is no sample store; PeerError naming the file when a write fails
///            (disk full, busy), after which nothing of that call is in the file.
class SampleStore {
 public:
  /// What `kept` does not name goes when a later step is appended.
  explicit SampleStore(const std::string& path, const KeptTokens& kept = {});

  /// The samples of `batch.step`, replacing any rows of that step. `advantages` holds one number per sample, in the order
  /// groups, then samples. Of a greedy answer the score is kept. `train_logprobs`, if not empty, one vector per sample in the same order.
  void append(const Batch& batch, std::span<const double> advantages, std::span<const std::vector<float>> train_logprobs = {});
  /// The answers of one evaluation, replacing any of the same step.
  void append_evals(StepId step, std::span<const EvalAnswer> answers);
  /// The groups that the update of `step` made too stale to train on, replacing any of the same step.
  void append_dropped(StepId step, std::span<const GroupId> groups);
  /// Drops all rows of later steps: what a resumed run will do again.
  void truncate_after(StepId step);
  /// The rows of another store, which replace those of the same steps. Errors: as above, and PeerError if that one cannot be read.
  void adopt(const std::string& path);
  /// Rows of samples; 0 where they cannot be counted.
  int64_t num_samples() const;
  /// Makes everything appended durable and folds the write-ahead log into the file. Without such a log it is durable already.
  void flush();

 private:
  std::string path_;
  KeptTokens kept_;
  int64_t thinned_to_ = 0;  // steps up to it have lost the tokens that are not kept
  Database database_;
  bool has_log_;  // ahead of the file
};

/// How the file of a store is damaged: SQLite's words, "" if it is not or if there is none. It looks at every page, for at most
/// `patience_s`; what it has not seen by then counts as right. Errors: PeerError for what may pass, such as a disk that cannot be read.
std::string sample_store_fault(const std::string& path, double patience_s);

/// What a store tells of a sample's tokens, also once they are gone.
struct ToldSample {
  bool has_tokens = true;  ///< and the text
  int64_t num_tokens = 0;
  int64_t oldest_version = 0, newest_version = 0;  ///< of its tokens
};

/// A group as it was trained, with what the trainer made of it.
struct StoredGroup {
  Group group;
  PolicyVersion trained_version{};                  ///< version before the update; lag = this - group.version
  std::vector<double> advantages;                   ///< one per sample
  std::vector<ToldSample> told;                     ///< one per sample
  std::vector<std::vector<float>> train_logprobs;   ///< one per sample; empty where none were stored
};

struct StepSummary {
  StepId step{};
  int64_t num_groups = 0, num_samples = 0;
  double mean_score = 0;
  double right_share = 0;   ///< of an evaluation: the share of answers that count as right
};

/// What an evaluation has of one named set.
struct EvalSetSummary {
  StepId step{};
  std::string name;
  int64_t num_answers = 0;
  double mean_score = 0, right_share = 0;
};

/// kById for answers of an evaluation: by row. kWidestSpread orders groups by the distance of their highest and lowest score.
enum class SampleOrder { kById, kLowestScore, kHighestScore, kWidestSpread, kLongest };

/// Some groups of a step.
struct GroupQuery {
  StepId step{};
  std::string text = {};  ///< a part of prompt, expected answer or a response, in any case of the letters A to Z; "" is in all
  SampleOrder order = SampleOrder::kById;
  std::optional<GroupId> group = {};  ///< this one alone
};

/// Which answers of an evaluation. The last two compare with an earlier evaluation.
enum class AnswerKind { kAll, kRight, kWrong, kBecameRight, kBecameWrong };

/// Some answers of an evaluation. An answer is right from a score of `right_at` on.
struct AnswerQuery {
  StepId step{};
  std::optional<StepId> since;  ///< the evaluation to compare with
  double right_at = 0.5;
  AnswerKind kind = AnswerKind::kAll;
  std::string text = {};  ///< as above
  SampleOrder order = SampleOrder::kById;  ///< kWidestSpread: by the change of the score, upwards or downwards
  std::optional<std::string> set = {};  ///< of this set alone
};

/// An answer, and what the model said to the same prompt in the evaluation before: none if it was not asked then.
struct ComparedAnswer {
  EvalAnswer now;
  std::optional<EvalAnswer> before;
};

/// Of one evaluation against another.
struct AnswerCounts {
  int64_t num_answers = 0, num_right = 0;
  int64_t num_compared = 0;  ///< answers that the earlier evaluation has, too
  int64_t num_became_right = 0, num_became_wrong = 0;
  int64_t num_found = 0;     ///< what the query asks for
};

/// Reads, also while a run writes.
///
/// Threads    one at a time.
/// Blocking   at most a few seconds when the file is locked.
/// Errors     UserError if the file is missing, no sample store, or lacks the step asked for.
class SampleReader {
 public:
  explicit SampleReader(const std::string& path);

  std::vector<StepSummary> steps() const;
  /// Those whose samples have their tokens, rising.
  std::vector<StepId> whole_steps() const;
  /// Groups [first, first + count) of those asked for, in their order; fewer at the end.
  std::vector<StoredGroup> groups(const GroupQuery& query, int64_t first, int64_t count) const;
  int64_t num_groups(const GroupQuery& query) const;
  /// The whole batch of a step as it was trained: ids, logprobs, versions, scores, parts.
  Batch batch(StepId step) const;
  /// An answer counts as right from the score `right_at` on.
  std::vector<StepSummary> eval_steps(double right_at) const;
  /// Of the sets that have names, by step, then in the order of their rows.
  std::vector<EvalSetSummary> eval_sets(double right_at) const;
  std::vector<EvalAnswer> evals(StepId step, int64_t first, int64_t count) const;
  /// Answers [first, first + count) of those asked for. Where a prompt has several answers, the n-th is compared with the n-th.
  std::vector<ComparedAnswer> compared(const AnswerQuery& query, int64_t first, int64_t count) const;
  AnswerCounts counts(const AnswerQuery& query) const;

 private:
  std::string path_;
  Database database_;
  bool tells_tokens_ = true;  // older files have no columns for it
  std::string body_columns_;  // in SQL, those of data/schema.h
  std::string set_column_, question_column_;  // in SQL; '' for the rows of a Tandem that did not keep them
};

}  // namespace tandem::data
