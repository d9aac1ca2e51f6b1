// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies that a process has, for itself and for those who ask it: a tensor cache that several threads may use. And what of a group is
// body, and what is head and goes to whoever decides.

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/data/sample.h"
#include "tandem/queue/tensor_cache.h"

namespace tandem::queue {

/// What moves together: a prompt goes wherever one of its samples goes, a record only to who writes samples down.
enum BodyPart : int32_t { kPrompt, kTraining, kRecord, kNumParts };
/// The first of body_fields().
enum BodyField : size_t { kPromptIds, kResponse, kLogprobs, kRoutes, kVersions, kKeptMass };

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
/// Why these cannot be a group's that was begun with weights of `start`, and `newest` is the newest version; "" if they can: each response
/// has a token, and each token its log-probability and its version.
std::string fault_of_measures(std::span<const int64_t> of_group, PolicyVersion start, PolicyVersion newest);
/// Bytes that rows of these groups would have more, were each field as long in all as in the longest. `measures`: of each group.
int64_t padding_bytes(std::span<const std::vector<int64_t>> measures);
/// Fills a head with its body. Errors: InternalError for a row that is not there.
void add_body(data::Group& head, const TensorCache& bodies);

/// What a reader must know of rows that TensorCache::pack wrote.
struct RowsHead {
  int64_t num_rows = 0;
  std::vector<int64_t> lengths;  ///< of each field, one row after the other
  int64_t num_bytes = 0;
};

/// Threads    any.
/// Errors     as TensorCache.
class Store {
 public:
  explicit Store(std::vector<CacheField> fields) : rows_(std::move(fields)) {}

  /// In place of rows of these samples that are here. The columns are moved in.
  void put(std::span<const SampleId> samples, data::Fields columns);
  /// What `from` has of them, which is all of each.
  void copy_in(std::span<const SampleId> samples, const TensorCache& from);
  /// Known or not.
  void drop(std::span<const SampleId> samples);
  /// Packs the rows of the first of these samples: as many as have `most_bytes`, at least one. `room` is asked where to. Returns how many;
  /// 0 if one of them is not here.
  using Room = std::function<std::span<std::byte>(const RowsHead&)>;
  int64_t read(std::span<const SampleId> samples, int64_t most_bytes, const Room& room) const;
  /// All of them into `to`, in memory of their own. False if one is not here.
  bool copy(std::span<const SampleId> samples, TensorCache& to) const;
  int64_t num_held() const;
  int64_t schema() const { return rows_.schema(); }

 private:
  mutable std::mutex mutex_;
  TensorCache rows_;
};

}  // namespace tandem::queue
