// SPDX-License-Identifier: Apache-2.0
#pragma once
// What of a group is body, and what is head and goes to whoever decides; and what that one knows of bodies. Needs no libtorch.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tandem/data/columns.h"
#include "tandem/data/sample.h"
#include "tandem/data/schema.h"

namespace tandem::queue {

/// A field of a sample. Fields of one part are on the same ranks.
struct CacheField {
  std::string name;
  data::Values type;    ///< empty values of its type
  int32_t part = 0;
};

using data::kNumParts, data::kPrompt, data::kRecord, data::kTraining;

/// The fields of a cache of bodies: data/schema.h.
std::vector<CacheField> body_fields();
/// Places of some of them.
constexpr size_t kPromptIds = data::body_column("prompt_ids"), kResponse = data::body_column("response_ids"),
                 kLogprobs = data::body_column("logprobs"), kTrainable = data::body_column("trainable"),
                 kRoutes = data::body_column("routes"),
                 kVersions = data::body_column("versions"), kKeptMass = data::body_column("kept_mass"), kText = data::body_column("text"),
                 kPromptText = data::body_column("prompt_text"), kAnswer = data::body_column("answer"),
                 kDataSource = data::body_column("data_source");
/// Ids, ends, scores, and the place of the prompt. A greedy answer that has no score yet keeps its text: a stage scores it.
data::Group head_of(const data::Group& group);

/// What everyone must know of a response before anyone reads it, beside the lengths of its lists.
struct TokenFacts {
  int64_t oldest = 0, newest = 0;  ///< versions of its tokens; 0 if it has none
  int64_t num_trainable = 0;

  /// Whether all its tokens are of this version.
  bool are_of(data::PolicyVersion version) const { return oldest == value(version) && newest == value(version); }
  std::array<int64_t, 3> numbers() const { return {oldest, newest, num_trainable}; }
  /// Of that many numbers.
  static TokenFacts from(std::span<const int64_t> numbers) { return {numbers[0], numbers[1], numbers[2]}; }
};
TokenFacts facts_of(const data::Sample& sample);

/// Of each sample the length of each of body_fields(), then its TokenFacts. `columns` are data::fields_of(groups).
std::vector<int64_t> measures_of(std::span<const data::Group> groups, const data::Fields& columns);
constexpr size_t kNumFacts = std::tuple_size_v<decltype(TokenFacts().numbers())>;  ///< of a sample's measures
/// Numbers of one sample in measures_of().
int64_t num_measures();
/// Bytes that rows of these groups would have more, were each field as long in all as in the longest. `measures`: of each group.
int64_t padding_bytes(std::span<const std::vector<int64_t>> measures);
}  // namespace tandem::queue
