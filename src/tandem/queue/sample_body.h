// SPDX-License-Identifier: Apache-2.0
#pragma once
// What of a group is body and stays where it was made, and what is head and goes to whoever decides.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/data/sample.h"
#include "tandem/queue/tensor_cache.h"

namespace tandem::queue {

/// What moves together: a prompt goes wherever one of its samples goes, a record only to who writes samples down.
enum BodyPart : int32_t { kPrompt, kTraining, kRecord, kNumParts };
/// The first of body_fields().
enum BodyField : size_t { kPromptIds, kResponse, kLogprobs, kRoutes, kVersions };

/// The fields of a cache of bodies. Names and types are those of data::fields_of, whose other columns are heads.
std::vector<CacheField> body_fields();
/// Ids, ends, scores, and the place of the prompt. A greedy answer that has no score yet keeps its text: a stage scores it.
data::Group head_of(const data::Group& group);
/// Fills a head with its body. Errors: InternalError for a row that is not there.
void add_body(data::Group& head, const TensorCache& bodies);

}  // namespace tandem::queue
