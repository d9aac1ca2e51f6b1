// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of a run's samples (tokens, log-probabilities, routes, texts). They stay with the ranks that generated them; only heads
// (ids, lengths, versions, scores) go to all. A greedy answer is part of the head: it has a score, or else its text. When a batch is
// formed, its rows go to the ranks that train them. One of these writes each sample down (runtime/folder/sample_writer.h).
//
//   keep       a group as the engine ends it: its body stays here
//   exchange   graded groups, as heads, to the queues of all ranks
//   lend       rows of finished groups to ranks that train, before their batch is complete
//   deal       rows of a batch to the ranks that train them: one all_to_all_v, nothing where they are there already; take_back undoes it
//   gather     bodies to rank 0, for a checkpoint
//   drop       trained or evicted
//
// lend, deal and gather ask data/row_plan.h:plan_rows what must move. queue/body/tensor_cache.h:TensorCache moves it, in the world.

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tandem/planner/homes.h"
#include "tandem/policy/ranks.h"
#include "tandem/queue/body/tensor_cache.h"

namespace tandem::runtime {

/// Ownership  owns the bodies; spans that it gives live until their sample is dropped.
/// Threads    one per rank; exchange, lend, deal and gather are collective.
/// Errors     as queue::TensorCache.
/// Read next  docs/design/tensor_cache.md
class BatchRows {
 public:
  /// A group's body is kept at its home. `homes` forgets those that are dropped.
  BatchRows(const policy::Ranks& ranks, planner::Homes& homes, int64_t group_size);

  /// A sample's, in place.
  struct Body {
    std::span<const int32_t> response;
    std::span<const float> logprobs;
    std::span<const uint8_t> trainable;  ///< empty: all are
    std::span<const int16_t> routes;
    std::span<const int64_t> versions;  ///< empty where its record is not, as the text
    std::string_view text;
  };

  /// Takes the body of a group that every rank of this one's replica has; what grading reads stays in the group, too.
  void keep(data::Group& group);
  /// A group that was made elsewhere, of which every rank hears: `rank` of the world gets its body. `measures`: queue::measures_of.
  void expect(const data::Group& head, std::span<const int64_t> measures, int rank);
  /// Where a body that was expected goes.
  queue::TensorCache& arrivals() { return cache_; }
  /// Takes the bodies of groups that every rank has, as of a replay, and leaves heads. Then nothing is dealt.
  void keep_everywhere(std::vector<data::Group>& groups);
  /// A group of a checkpoint, which every rank has read: kept where its replica is. Leaves the head.
  void restore(data::Group& group);

  /// The graded groups of all peers as heads, ordered by id, without those dropped meanwhile. `speaks` is false on ranks whose groups
  /// another rank sends, too. Collective over the peers.
  std::vector<data::Group> exchange(comm::Group& peers, std::vector<data::Group> graded, bool speaks);

  /// What training reads of each of these groups goes to a replica that trains, too: `borrowers`, data-parallel ranks. There it stays until
  /// it is taken back or dropped. Collective.
  void lend(std::span<const data::Group> heads, std::span<const int> borrowers);
  /// Afterwards the rows of `heads` (groups, then samples) are here where `owners`, training's data-parallel ranks, say so. Records (texts,
  /// versions) go to those that speak for training, and where asked for to all. Returns the bytes that moved between all ranks, with
  /// those that were lent since the last deal. Collective.
  int64_t deal(std::span<const data::Group> heads, std::span<const int> owners, bool with_records);
  /// Undoes lend and deal, for a batch that is formed anew: rows are again only where they were born.
  void take_back(std::span<const data::Group> heads);
  /// Bodies to rank 0, for a checkpoint. Collective.
  void gather(std::span<const data::GroupId> groups);
  /// Heads with their bodies, which are here.
  std::vector<data::Group> complete(std::vector<data::Group> heads) const;
  /// So those of the samples in `rows`, which count and rise through all heads; others are left out, and groups that have none. A prompt is
  /// where the first sample of its group is.
  std::vector<data::Group> complete_rows(std::span<const data::Group> heads, std::span<const size_t> rows) const;

  int64_t num_prompt_tokens(const data::Group& head) const;
  int64_t num_tokens(data::SampleId sample) const;
  const queue::TokenFacts& facts(data::SampleId sample) const { return facts_.at(sample); }

  std::span<const int32_t> prompt(const data::Group& head) const;
  Body body(data::SampleId sample) const;

  /// Known or not.
  void drop(std::span<const data::Group> heads);

 private:
  /// World ranks that hold a part of a group's body.
  std::vector<int> holders(data::GroupId group, int32_t part) const;
  // `wanters` of a row, by its place in `heads`, and a part. Returns the bytes that moved between all ranks.
  int64_t move(std::span<const data::Group> heads, const std::function<std::vector<int>(size_t row, int32_t part)>& wanters);

  const policy::Ranks& ranks_;
  planner::Homes& homes_;
  const int64_t group_size_;
  queue::TensorCache cache_;
  std::unordered_map<data::SampleId, queue::TokenFacts> facts_;
  bool everywhere_ = false;                            // all ranks have all bodies
  std::set<data::GroupId> on_first_;                   // rank 0 has them besides their replica
  std::map<data::GroupId, int> expected_;              // made elsewhere: the rank that gets them
  int64_t lent_bytes_ = 0;                             // since the last deal
  std::map<data::GroupId, std::set<int>> lent_;        // to data-parallel ranks of those that train
  std::vector<std::vector<int>> rollout_, train_;      // world ranks by data-parallel rank
  std::vector<int> writers_;                           // of those that train, the one that speaks, by data-parallel rank
};

}  // namespace tandem::runtime
