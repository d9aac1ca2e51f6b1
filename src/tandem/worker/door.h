// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where workers reach a run: the queue's controller behind a socket, the bodies of checkpoints, and the workers that the run starts itself.
// On the first rank alone.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/monitor/recorder.h"
#include "tandem/queue/backend/wire/server.h"
#include "tandem/queue/backend/wire/store_server.h"
#include "tandem/queue/desk.h"
#include "tandem/queue/body/store.h"
#include "tandem/worker/body_reader.h"
#include "tandem/worker/journal.h"
#include "tandem/worker/local_workers.h"
#include "tandem/worker/welcome.h"

namespace tandem::worker {

/// CURVE keys that are made once: `path` has them, for the user's eyes alone, and `token` the public one, which workers need. Errors:
/// UserError or PeerError if one cannot be written.
comm::ServerKeys kept_keys(const std::string& path, const std::string& token);
/// A number above those that all starts before got with the keys in `path`. The file counts them: who has the keys has the count, and no
/// clock that is set back makes a start look older than the one before. Errors: as kept_keys; UserError if the count is none.
queue::Incarnation next_start(const std::string& path);
/// CURVE keys of a run, made once: RUN_DIR/worker_keys.json has them, RUN_DIR/token what a worker needs.
comm::ServerKeys keys_of_run(const config::RunConfig& config);
/// Errors: UserError if workers.listen stays on one machine.
void require_reached(const config::RunConfig& config);
/// That of another machine than the first rank's, as those who reach workers.listen reach it. Errors: UserError if there is no way there.
std::string reached_host(const config::RunConfig& config);
/// Errors: UserError if the run could not listen at workers.listen.
void try_listening(const config::RunConfig& config);
/// The host in workers.listen.
std::string listening_host(const config::RunConfig& config);

/// Ownership  owns all of it.
/// Threads    used by one; the desk answers on a thread of its own.
/// Errors     UserError for an address that it cannot have, and if a local worker cannot be started. PeerError if for workers.wait_s no
///            worker is there or none goes on, for what a worker said that failed with it, and if the desk or the local workers fail.
class Door {
 public:
  using PromptOf = queue::Desk::PromptOf;
  /// `tells_answers`: workers need the right answers of prompts, to score what they generate.
  Door(const config::RunConfig& config, queue::Takes takes, PromptOf prompt_of, bool tells_answers);
  ~Door();

  /// What a checkpoint keeps.
  struct State {
    data::GroupId next_group{};
    std::vector<std::byte> queue;  ///< queue::Controller::state, with bodies; empty: nothing
  };
  /// Before open(). Errors: UserError if it is of another policy version.
  void restore(const State& state, data::PolicyVersion version);
  /// From now on workers may join: the run's log says where. The ranks have published weights.
  void open(const Welcome& welcome);
  bool is_open() const { return server_.has_value(); }
  /// The checksum of a version of the weights, as rollout runs them here: a worker that says another of it is barred.
  void know_weights(data::PolicyVersion version, uint64_t checksum);

  /// Heads, and where their bodies are, "" where own_store() has them: of the batch of `step`, none if it is not ready.
  queue::answer::Taken take(data::StepId step);
  /// The same of groups that the next batch would have as things stand, each once: bare heads (data/columns.h).
  queue::answer::Taken ahead();
  /// At which this process finds bodies of a checkpoint.
  const std::string& own_store() const { return own_server_.place(); }
  /// Bodies that were not where they should be: their groups are generated anew. A worker that gave what cannot be, or whose bodies nobody
  /// could fetch again and again, is barred; after one of a checkpoint check() fails.
  void lose(std::span<const Lost> groups);
  /// The run's own, whole.
  data::Prompt prompt_of(data::GroupId group) const;
  void give_back();
  std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after);
  /// The run is over: workers that ask hear so.
  void end();
  /// With the finished groups as `saved` rewrites them, if it can do so with all: `here` has them. Else none, and `missing` has the others,
  /// as ahead().
  std::optional<State> state(const std::set<data::GroupId>& here, const queue::SampleQueue::Rewrite& saved,
                             queue::answer::Taken& missing);
  int64_t num_filtered() const;
  int64_t num_finished() const;
  /// That will start next.
  data::GroupId next_group() const;
  /// Metrics, and what each worker did since the last call (monitor/timeline_sink.h).
  void record(monitor::Recorder& recorder);
  /// To be called again and again: the log hears of workers that came and went. Errors: as above.
  void check();

 private:
  queue::answer::Taken places_of(std::span<const data::GroupId> groups) const;
  std::string fault_of_weights(data::PolicyVersion version, int64_t checksum);
  void drop_over();
  std::string join_command() const;
  void give_up_dead();
  void say_who_came();
  void say_who_is_barred();
  std::string worker_text(queue::WorkerId worker, const queue::call::Join& said) const;

  const config::RunConfig& config_;
  const PromptOf prompt_of_;
  const bool tells_answers_;
  const comm::ServerKeys keys_;
  std::map<data::PolicyVersion, int64_t> checksums_;  // of the newest versions; guarded by mutex_
  int64_t num_compared_ = 0;                          // since the last record
  int64_t num_connected_ = 0;                         // at the last commit: after the last step of a run they leave
  const queue::Incarnation incarnation_;
  mutable std::mutex mutex_;       // guards controller and desk
  queue::Controller controller_;
  queue::Store own_;               // bodies of a checkpoint
  queue::wire::StoreServer own_server_;
  std::map<data::GroupId, std::vector<int64_t>> own_measures_;  // of these
  std::set<data::GroupId> told_;   // that ahead() gave
  std::optional<Journal> journal_;
  std::optional<queue::Desk> desk_;
  std::optional<queue::wire::Server> server_;
  std::optional<LocalWorkers> local_;
  Drawing drawing_;                                 // of the run
  std::map<queue::WorkerId, queue::call::Join> workers_;  // of whom the log has heard
  queue::WorkerId probed_{-1};
  bool has_lost_own_ = false;                       // a body of the checkpoint
  std::map<std::string, int64_t> num_lost_;         // by store, since the last batch
  int64_t num_filtered_told_ = 0, went_on_ = 0;
  double seen_worker_s_ = 0, said_s_ = 0, probed_s_ = 0, recorded_s_ = 0, checked_s_ = 0, went_on_s_ = 0;
  bool is_over_ = false, said_alone_ = false;
};

}  // namespace tandem::worker
