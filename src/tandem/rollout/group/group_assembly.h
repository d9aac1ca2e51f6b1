// SPDX-License-Identifier: Apache-2.0
#pragma once
// Groups above the engine: a prompt and its number of samples become as many sequences, and their completions a group again. A greedy
// answer is one sequence more.

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tandem/rollout/engine.h"

namespace tandem::rollout {

/// One prompt to be answered `num_samples` times.
struct GroupRequest {
  data::Group group;               ///< id and prompt with its token ids; samples are filled by the engine. Those of take_out go on
  int64_t num_samples = 1;
  int64_t first_sample = 0;        ///< id of sample 0, and of its random stream
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;   ///< tokens that end a response; they belong to it
  MakeTokenListener make_listener;  ///< may be empty
  std::vector<int64_t> max_new_tokens;   ///< per sample; empty means sampling.max_new_tokens for all
  bool record_routes = false;            ///< fill data::Sample::routes
  bool with_greedy = false;              ///< fill data::Group::greedy, under sampling.max_new_tokens
};

/// Ownership  uses the engine; while groups are under way nobody else takes its completions.
/// Threads    that of the engine.
/// Blocking   none.
/// Errors     UserError as Engine::submit, before any sequence of the group is submitted; InternalError for an id that is under way.
/// Read next  engine.h
class GroupAssembly {
 public:
  explicit GroupAssembly(Engine& engine) : engine_(engine) {}

  void admit(GroupRequest request);
  /// Groups that ended since the last call, in the order their last sequence ended.
  std::vector<data::Group> finished();
  /// Forgets a group that is waiting or running; what it holds is freed.
  void cancel(data::GroupId group);
  /// A group that is under way, with what there is of its samples, for another engine's admit(): those that are unfinished are
  /// kAborted. It is forgotten here. nullopt for one that is not under way, and for one with a greedy answer.
  std::optional<data::Group> take_out(data::GroupId group);
  /// The same of a group that goes on here, too.
  std::optional<data::Group> so_far(data::GroupId group) const;
  /// Tokens of the unfinished sequences of each group, prompts included.
  std::map<data::GroupId, int64_t> num_tokens() const;
  /// Groups waiting or running, oldest first.
  std::vector<data::GroupId> unfinished() const;
  /// Those of them that have no token yet that stays at a switch of weights. A greedy answer does not count: it is not trained on.
  std::vector<data::GroupId> without_token() const;

 private:
  struct Open {
    data::Group group;
    std::map<SequenceId, size_t> samples;   // unfinished sequences, and the place of each sample
    std::optional<SequenceId> greedy;       // unfinished
  };

  Engine& engine_;
  std::map<data::GroupId, Open> groups_;
  std::unordered_map<SequenceId, data::GroupId> group_of_;
};

}  // namespace tandem::rollout
