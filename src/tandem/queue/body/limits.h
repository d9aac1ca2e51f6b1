// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run believes of a group that somebody else generated: each function is a list of rules, and says which of them does not hold.
// Needs no libtorch.

#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>

#include "tandem/base/ids.h"
#include "tandem/data/sample.h"

namespace tandem::queue {

/// What a group of this run may have; by default anything.
struct GroupLimits {
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max() / 4;
  int64_t group_size = 1;
  int64_t prompt_tokens = kAny, response_tokens = kAny;  ///< at most
  int64_t vocab_size = kAny;                             ///< token ids below
  int64_t num_experts = kAny;                            ///< routes below; -1 stands for a token without one
  int64_t route_width = -1;                              ///< routes of a token, where there are any; -1: any number

  /// Of a sample's row, and of a group's tokens in a call.
  int64_t row_bytes() const;
  int64_t group_bytes() const;
  bool operator==(const GroupLimits&) const = default;
  static void each(auto& m, auto&& field) {
    field(m.group_size), field(m.prompt_tokens), field(m.response_tokens), field(m.vocab_size), field(m.num_experts), field(m.route_width);
  }
};

/// A drawn token's log-probability is at most 0 in our kernels, without rounding: log1p of a sum of exponentials is at least 0. None is
/// drawn that has less than e^-104 of the mass.
constexpr float kLeastLogprob = -200;
constexpr int64_t kMostTokenBytes = 1024;  ///< of text; the longest tokens of known vocabularies have 256
constexpr size_t kMostParts = 64, kMostPartChars = 128, kMostPartNames = 256;  ///< of a sample; of a name; names of a client

/// Why these cannot be a group's that was begun with weights of `start`, and `newest` is the newest version; "" if they can: each response
/// has a token, and each token its log-probability and its version; nothing is longer than may be, and texts of the prompt are not there.
std::string fault_of_measures(std::span<const int64_t> of_group, PolicyVersion start, PolicyVersion newest, const GroupLimits& limits = {});
/// The same of the tokens of a sample, whose prompt has so many: numbers that there are, of versions from `oldest` to `newest`.
std::string fault_of_tokens(const data::Sample& sample, int64_t prompt_tokens, PolicyVersion oldest, PolicyVersion newest,
                            const GroupLimits& limits);
/// The same of the scores of a group. `names`: parts that are known by now.
std::string fault_of_scores(const data::Group& head, const std::set<std::string>& names);

}  // namespace tandem::queue
