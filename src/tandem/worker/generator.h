// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a worker does with a lease: generates the group beside everything else, with the newest weights that it could fetch, and has it
// scored.
//
//   take_weights --> admit --> (so_far, cancel) --> finished        all without waiting; a group comes back with its scores

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tandem/comm/launch.h"
#include "tandem/config/config.h"
#include "tandem/generate/generator.h"
#include "tandem/generate/grades.h"
#include "tandem/policy/rank.h"
#include "tandem/queue/client.h"
#include "tandem/serve/reward_model.h"
#include "tandem/text/tokenizer.h"
#include "tandem/worker/weights.h"
#include "tandem/worker/welcome.h"

namespace tandem::worker {

/// How a worker differs from what the recipe says of rollout.
struct GeneratorOptions {
  std::string layout;        ///< of one replica, such as tp2, with a thread for each rank; "": one rank
  std::string dtype;         ///< "": as the recipe has it
  int64_t threads = 0;       ///< of computing, shared by its ranks; 0: all cores
  double tokens_per_s = 0;   ///< at most; 0: as fast as it can
  double deadline_s = 600;   ///< for weights to come; for so long those who have them may fail
  std::string host;          ///< at which other workers reach what this one passes on; "": loopback
};

/// At one moment.
struct GeneratorState {
  data::PolicyVersion version{-1};        ///< of the weights it draws with
  std::set<data::GroupId> without_token;  ///< of the groups under way
};

/// Ownership  owns model, engine, stream and scorer; uses the world.
/// Threads    one per rank; generation, grading and fetching go on in threads of its own. All ranks make the same calls, which are
///            collective; only the first has scores.
/// Errors     UserError for a recipe, model or reward that cannot be; what generation or a rule threw, by the next call; PeerError where
///            weights do not come.
class Generator {
 public:
  /// `dir`: a folder of the worker's own, where the first rank puts the files of the welcome.
  Generator(const Welcome& welcome, const GeneratorOptions& options, const std::string& dir, comm::Group& world);
  ~Generator();

  int64_t group_size() const { return config_.schedule.queue.group_size; }
  double lease_s() const { return config_.workers.lease_s; }
  /// Goes on to `newest` when it can: a fetch begins, or what came is given to the stream.
  void take_weights(data::PolicyVersion newest);
  /// Of the weights that a group admitted now begins with, at least; none before the first came.
  std::optional<data::PolicyVersion> told_version() const { return told_version_; }
  /// Checksum of those weights, as the run has it of its own; 0 where this worker computes in another dtype than the recipe says.
  int64_t weights_checksum() const { return weights_checksum_; }
  /// Groups that it could take beside those that it has: some wait for a place, so that none is empty while the queue is asked for more.
  int64_t room() const;
  void admit(queue::Task task);
  void cancel(const std::vector<data::GroupId>& groups);
  GeneratorState state() const;
  /// The tokens so far of those of these groups that run. Waits for a token.
  std::vector<data::Group> so_far(const std::vector<data::GroupId>& groups);
  /// Nothing is drawn any more: all ranks stand before the same token. To be called before it goes, unless an error ends it.
  void rest() { stream_->pause(); }
  /// Groups with their scores, after a moment, on the first rank.
  std::vector<data::Group> finished();
  /// Whether what finished() threw is a fault of the reward, which every worker would have.
  bool has_reward_failed() const { return has_reward_failed_; }
  rollout::EngineCounts counts() const { return stream_->state().counts; }
  /// Of the weights that it took.
  int64_t num_versions() const { return num_versions_; }

 private:
  bool is_fetched();
  void give_to_stream();
  void keep_pace(int64_t tokens);

  const config::RunConfig config_;
  const GeneratorOptions options_;
  const int64_t most_groups_;       // at once
  text::Tokenizer tokenizer_;
  const model::ModelConfig model_config_;
  comm::Group& world_;
  std::unique_ptr<comm::DeviceGroups> carriers_;
  policy::Rank rank_;
  std::optional<Weights> weights_;
  std::optional<rollout::Engine> engine_;
  std::optional<generate::Generator> generator_;
  rollout::Stream* stream_ = nullptr;  // of the generator
  serve::RewardModels reward_models_;
  std::unique_ptr<reward::Rule> rule_;
  std::optional<generate::Grades> grades_;
  bool has_reward_failed_ = false;
  std::set<data::GroupId> groups_;  // under way, those with the graders among them
  std::optional<data::PolicyVersion> told_version_;
  data::PolicyVersion fetching_{-1};
  bool draws_as_run_ = true;        // in the dtype of the run's own rollout
  int64_t weights_checksum_ = 0;
  double pace_begin_s_ = 0, failing_since_s_ = 0;
  int64_t paced_tokens_ = 0, num_versions_ = 0, num_overtaken_ = 0;
  std::future<pull::Fetched> fetch_;  // last: it uses the others
};

}  // namespace tandem::worker
