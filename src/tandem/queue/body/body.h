// SPDX-License-Identifier: Apache-2.0
#pragma once
// What of a group is body, and what is head and goes to whoever decides; and what that one knows of bodies. Needs no libtorch.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tandem/data/columns.h"
#include "tandem/data/sample.h"

namespace tandem::queue {

/// A field of a sample. Fields of one part are on the same ranks.
struct CacheField {
  std::string name;
  data::Values type;    ///< empty values of its type
  int32_t part = 0;
};

/// What moves together: a prompt goes wherever one of its samples goes, a record only to who writes samples down.
enum BodyPart : int32_t { kPrompt, kTraining, kRecord, kNumParts };
/// Those of body_fields(), in their order.
enum BodyField : size_t { kPromptIds, kResponse, kLogprobs, kRoutes, kVersions, kKeptMass, kText, kPromptText, kAnswer, kDataSource };

/// The fields of a cache of bodies. Names and types are those of data::fields_of, whose other columns are heads.
std::vector<CacheField> body_fields();
/// Ids, ends, scores, and the place of the prompt. A greedy answer that has no score yet keeps its text: a stage scores it.
data::Group head_of(const data::Group& group);
/// What everyone must know of bodies before anyone reads them: of each sample the length of each of body_fields(), then the oldest and the
/// newest version of its tokens. `columns` are data::fields_of(groups).
std::vector<int64_t> measures_of(std::span<const data::Group> groups, const data::Fields& columns);
constexpr size_t kNumVersions = 2;  ///< of a sample's measures
/// Numbers of one sample in measures_of().
int64_t num_measures();
/// Bytes that rows of these groups would have more, were each field as long in all as in the longest. `measures`: of each group.
int64_t padding_bytes(std::span<const std::vector<int64_t>> measures);
}  // namespace tandem::queue
