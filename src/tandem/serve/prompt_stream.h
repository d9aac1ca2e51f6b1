// SPDX-License-Identifier: Apache-2.0
#pragma once
// The endless stream of training prompts, tokenized: group number g is the prompt at position g of the shuffled
// epochs, or of the mix of several sets.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/data/source.h"
#include "tandem/reward/rule.h"
#include "tandem/text/turns.h"
#include "tandem/text/tokenizer.h"

namespace tandem::serve {

/// Where text of prompts becomes tokens.
struct PromptText {
  const text::Tokenizer& tokenizer;
  std::string model;  ///< directory whose chat template renders messages, unless the data options name another
};

/// The options under which rows are opened for a reward: columns are kept only for one that reads them. Errors: UserError if it
/// needs a right answer and the rows have none.
data::Options data_for(const reward::Rule& rule, const data::Options& options, bool has_episodes = false);

/// Ownership  uses the tokenizer.
/// Threads    one.
/// Errors     UserError for a prompt without a token, for one that is too long, for messages the template does not take.
class PromptStream {
 public:
  PromptStream(const data::Options& options, data::Split split, PromptText text);

  /// The prompt of a position, in training order.
  data::Prompt at_position(int64_t position) const;
  /// Where it stands in its file, for errors.
  std::string where(int64_t position) const;
  /// `row` counts the rows of all sets that were not dropped; the prompt's own row counts those of all sets.
  data::Prompt at_row(int64_t row) const;
  /// What a person would read of it.
  std::string question(int64_t row) const;
  /// The sets, in the order of at_row; a name is "" where a set has none.
  struct Set {
    std::string name;
    int64_t size;
  };
  std::vector<Set> sets() const;
  int64_t size() const { return size_; }
  /// Tokens of the longest prompt; looks at every row the first time.
  int64_t longest_prompt() const;
  /// Errors: UserError naming the place and the option if a prompt and `new_tokens` more do not fit into `context` tokens.
  void require_context(int64_t new_tokens, const char* option, int64_t context) const;
  /// The right answer of a prompt as a model would sample it: the tokens of its text and one of `ends`, the ids that end a response.
  /// Messages are answered with the end that the chat template writes there; the tokenizer's end of text comes next, then the first.
  std::vector<int32_t> answer_ids(const data::Prompt& prompt, std::span<const int32_t> ends) const;
  double epochs(int64_t position) const { return static_cast<double>(position) / static_cast<double>(size()); }

 private:
  struct Part {
    std::string name;
    std::unique_ptr<data::PromptSource> source;
    std::vector<int64_t> rows;   ///< that are left, in the order of a curriculum if there is one; empty for all as they are
    data::DataOrder order;
    int64_t size() const { return rows.empty() ? source->size() : std::ssize(rows); }
    int64_t row(int64_t index) const { return rows.empty() ? index : rows[static_cast<size_t>(index)]; }  ///< of the source
  };

  Part open(const std::string& name, std::unique_ptr<data::PromptSource> source) const;
  std::vector<int64_t> short_enough(const data::PromptSource& source) const;
  void sort_by_rank(const data::PromptSource& source, std::vector<int64_t>& rows) const;
  std::pair<const Part*, int64_t> part_of(int64_t row) const;
  data::Prompt prompt(const Part& part, int64_t index) const;
  data::Prompt tokenized(const data::PromptSource& source, int64_t row) const;
  const text::ChatTemplate& chat() const;
  std::optional<int32_t> end_of_answer(const data::Prompt& prompt, std::span<const int32_t> ends) const;

  data::Options options_;
  PromptText text_;
  mutable std::optional<text::ChatTemplate> chat_;  // read for the first prompt of messages
  std::vector<Part> parts_;
  data::MixOrder mix_;
  int64_t size_ = 0;
  mutable int64_t longest_prompt_ = 0;
  mutable std::string longest_place_;
};

}  // namespace tandem::serve
