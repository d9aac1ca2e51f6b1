// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of a sample: every list that it carries, a line for each. Whatever packs, sends, cuts, joins or stores bodies is a loop over
// this table. What else a sample has (ids, end, scores) is its head: whoever decides reads heads alone (queue/body/body.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "tandem/data/sample.h"

namespace tandem::data {

/// What moves together: a prompt goes wherever one of its samples goes, a record only to who writes samples down.
enum BodyPart : int32_t { kPrompt, kTraining, kRecord, kNumParts };

/// How many entries a list has.
enum class Entries {
  kTokens,        ///< one for each response token
  kTokensOrNone,  ///< the same, or none in any sample of the run
  kComputed,      ///< equally many for each token that went through the model
  kAny,           ///< it is set as a whole, and does not grow with the response
};

/// A list of Prompt or Sample. A prompt's lists stand in the row of its group's first sample alone.
template <class O, class L>
struct BodyColumn {
  using Owner = O;
  using Value = typename L::value_type;
  static constexpr bool kIsText = std::is_same_v<L, std::string>;

  const char* name;    ///< in packed samples
  const char* stored;  ///< in the table `samples` of samples.sqlite
  L O::*list;
  BodyPart part;
  Entries entries;
  bool is_graded = false;  ///< a reward reads it
  bool stays = false;      ///< in samples.sqlite where a step no longer keeps its tokens
  bool may_lack = false;   ///< packed samples of an older Tandem have it not; it is empty then
};

inline constexpr std::tuple kBodyColumns{
    BodyColumn{"prompt_ids", "prompt_ids", &Prompt::ids, kPrompt, Entries::kAny, /*is_graded=*/true},
    BodyColumn{"response_ids", "response_ids", &Sample::ids, kTraining, Entries::kTokens, /*is_graded=*/true},
    BodyColumn{"logprobs", "logprobs", &Sample::logprobs, kTraining, Entries::kTokens},
    BodyColumn{"trainable", "trainable", &Sample::trainable, kTraining, Entries::kTokensOrNone, false, false,
               /*may_lack=*/true},
    BodyColumn{"doubt", "doubt", &Sample::doubt, kTraining, Entries::kTokensOrNone, false, false, /*may_lack=*/true},
    BodyColumn{"routes", "routes", &Sample::routes, kTraining, Entries::kComputed},
    BodyColumn{"versions", "versions", &Sample::versions, kRecord, Entries::kTokens},
    BodyColumn{"kept_mass", "kept_mass", &Sample::kept_mass, kRecord, Entries::kTokensOrNone},
    BodyColumn{"text", "response", &Sample::text, kRecord, Entries::kAny, /*is_graded=*/true},
    BodyColumn{"prompt_text", "prompt", &Prompt::text, kRecord, Entries::kAny, /*is_graded=*/true, /*stays=*/true},
    BodyColumn{"answer", "answer", &Prompt::answer, kRecord, Entries::kAny, /*is_graded=*/true, /*stays=*/true},
    BodyColumn{"data_source", "data_source", &Prompt::data_source, kRecord, Entries::kAny, /*is_graded=*/true, /*stays=*/true},
};

/// visit(column) for each, in order.
constexpr void each_body_column(const auto& visit) {
  std::apply([&](const auto&... column) { (visit(column), ...); }, kBodyColumns);
}

/// visit(column, its list) for each list of this Sample, or of this Prompt.
template <class Owner>
constexpr void each_list(Owner& owner, const auto& visit) {
  each_body_column([&]<class Column>(const Column& column) {
    if constexpr (std::is_same_v<typename Column::Owner, std::remove_const_t<Owner>>) visit(column, owner.*column.list);
  });
}

/// Its place in the table. Does not compile for a name that is not there.
consteval size_t body_column(std::string_view name) {
  size_t place = 0, found = std::tuple_size_v<decltype(kBodyColumns)>;
  each_body_column([&](const auto& column) {
    if (column.name == name) found = place;
    ++place;
  });
  if (found == place) throw "no such column";
  return found;
}

}  // namespace tandem::data
