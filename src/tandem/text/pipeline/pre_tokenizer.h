// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cuts a normalised text into pieces that are merged each for itself.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/pipeline/normalizer.h"

namespace tandem::text {

struct PreTokenizeStep {
  enum class Kind {
    kSplit,    ///< at the matches of `pattern`
    kReplace,  ///< `content` for every match of `pattern`
    kPrefix,   ///< `content` before a piece that does not begin with it
  };
  enum class Behavior {
    kIsolated,            ///< matches and gaps are pieces
    kRemoved,             ///< gaps are pieces
    kMergedWithPrevious,  ///< a match belongs to the gap before it
    kMergedWithNext,
    kContiguous,          ///< neighbouring matches are one piece
  };
  Kind kind = Kind::kSplit;
  TextPattern pattern;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;       ///< gaps count as matches and matches as gaps
  std::string content;
  bool only_first = false;   ///< kPrefix: only what stands at the beginning of the whole text
};

/// Threads  const members from any thread.
/// Errors   UserError for a pattern that cannot be used.
class PreTokenizer {
 public:
  using Take = std::function<void(std::string_view piece)>;  ///< the piece may be gone after the call
  explicit PreTokenizer(std::vector<PreTokenizeStep> steps);
  /// Pieces in order, none of them empty. `first`: the text begins where the whole text did.
  void split(std::string_view text, bool first, const Take& take) const { run(0, text, first, take); }

 private:
  struct Part {
    size_t begin, end;
    bool match;
  };
  void run(size_t step, std::string_view text, bool first, const Take& take) const;
  void split_apart(size_t step, std::string_view text, bool first, const Take& take) const;
  void split_merging(size_t step, std::string_view text, bool first, const Take& take) const;

  std::vector<PreTokenizeStep> steps_;
  std::vector<std::optional<Regex>> patterns_;  // of each step; a prefix has none
};

}  // namespace tandem::text
