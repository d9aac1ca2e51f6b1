// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prompts by the number of their record, and the order in which training visits the records.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/data/options.h"
#include "tandem/data/sample.h"

namespace tandem::data {

/// Threads    const members from any thread.
/// Errors     UserError naming file and line when opened; at() of a record outside [0, size()) is a bug.
class PromptSource {
 public:
  virtual ~PromptSource() = default;
  virtual int64_t size() const = 0;
  /// The prompt without its ids. The same record gives the same prompt, always.
  virtual Prompt at(int64_t record) const = 0;
  /// What a person would read of it: without what a template has around the question; of messages the user's last.
  virtual std::string question(int64_t record) const { return at(record).text; }
  /// Where a record stands, as every error names it: FILE:LINE, or FILE row N where there are no lines. Both count from 1, what was
  /// passed over included; `record` itself counts from 0.
  virtual std::string where(int64_t record) const = 0;
  virtual const std::string& name() const = 0;
};

enum class Split { kTrain, kHeldOut };

/// As options.answer_column: the records have no answer.
constexpr const char* kNoAnswer = "none";

/// A training set and how often it is drawn from, against the others.
struct MixPart {
  std::string path;
  double weight = 1;
};
/// Of options.mix, or options.train alone. Errors: UserError for an entry that is not FILE=WEIGHT with a weight above 0.
std::vector<MixPart> mix_of(const Options& options);

/// A held-out set; `name` is "" for the one that has none.
struct EvalSet {
  std::string name;
  std::string path;
};
/// Of options.eval. Errors: UserError for several of which one has no name, for a name that two have, and for one that is no word.
std::vector<EvalSet> eval_sets(const Options& options);

/// Whether problems are made here, not read: `synthetic` and `word_problems`.
bool is_generated(std::string_view path);

/// Opens a file of records, or what is_generated. Errors: UserError; also for a source without records.
std::unique_ptr<PromptSource> open_source(const std::string& path, const Options& options, Split split);

/// Records of a .jsonl file, a .json array or a .parquet file.
std::unique_ptr<PromptSource> open_records(const std::string& path, const Options& options, int64_t max_rows);

/// Additions such as "123+456=" -> "579". A pair of operands, in either order, belongs to training or to evaluation, the same for
/// every seed. So no run trains on a held-out problem.
std::unique_ptr<PromptSource> open_additions(const Options& options, Split split);
/// A synthetic problem, or an answer to one, as people write numbers: data.reversed has their last digits first.
std::string as_read(const Options& options, std::string text);
/// Which side of the split a pair is on, in either order. Each `kind` of problem has a split of its own.
bool is_held_out(int64_t a, int64_t b, double fraction, uint64_t kind = 0);

/// The problems of word_problems.h as records {"question":, "answer":}: prompt_template, as_chat and columns are as for those of a file.
std::unique_ptr<PromptSource> open_word_problems(const Options& options, Split split);

/// A new permutation of the records each epoch. It is a pure function of the position: a checkpoint keeps only that.
class DataOrder {
 public:
  DataOrder(uint64_t seed, int64_t size, bool shuffle = true);
  /// The record at a position of the endless stream of prompts.
  int64_t row(int64_t position) const;
  int64_t epoch(int64_t position) const { return position / size_; }

 private:
  uint64_t seed_;
  int64_t size_;
  bool shuffle_;
  int half_bits_;
};

/// Which part of a mix a position of the stream draws from, and which of that part's positions it is. It is a pure function: a
/// checkpoint keeps only the position. Each part gets its share of every stretch of positions, to within one a part.
class MixOrder {
 public:
  explicit MixOrder(std::vector<double> weights);
  struct Draw {
    size_t part;
    int64_t position;  ///< within the part
  };
  Draw at(int64_t position) const;

 private:
  std::vector<double> shares_;  ///< of each part among itself and those behind it
};

}  // namespace tandem::data
