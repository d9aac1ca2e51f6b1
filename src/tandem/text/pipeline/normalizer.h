// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is done to a stretch of text before it is split.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/text/pipeline/split_pattern.h"

namespace tandem::text {

struct NormalizeStep {
  enum class Kind {
    kNfc,
    kPrepend,  ///< `content` before a text that is not empty
    kReplace,  ///< `content` for every match of `pattern`
  };
  Kind kind = Kind::kNfc;
  TextPattern pattern;
  std::string content;
};

/// How large a text may become by all steps: so many times its bytes, or kLeastRoom_bytes. Steps that each double it would else fill
/// the memory.
constexpr size_t kMostGrowth = 64, kLeastRoom_bytes = size_t{1} << 20;

/// Threads  const members from any thread.
/// Errors   UserError for a pattern that cannot be used.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizeStep> steps);
  /// The steps in order. The result is `text` itself where nothing changes, or lies in `store`. Errors: UserError, before it is built,
  /// for a result beyond kMostGrowth.
  std::string_view apply(std::string_view text, std::string& store) const;

 private:
  std::vector<NormalizeStep> steps_;
  std::vector<std::optional<Regex>> patterns_;  // of each step; only kReplace has one
};

}  // namespace tandem::text
