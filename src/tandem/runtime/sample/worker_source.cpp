// SPDX-License-Identifier: Apache-2.0
// Batches that workers generate.
//
//   takes     heads of a batch, on the first rank, and their bodies from where they were made
//   gives     both to the ranks that train (batch_rows.h)
//   waits for workers
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/pull/weight_server.h"
#include "tandem/runtime/sample/grades.h"
#include "tandem/runtime/sample/sample_source.h"
#include "tandem/worker/door.h"

namespace tandem::runtime {
namespace {

constexpr std::chrono::milliseconds kMoment{5};  // between two looks for a batch

// Whether no rank before this one holds something that it holds.
bool holds_something_first(const model::ParameterTable& table) {
  return std::ranges::any_of(table.entries, [&](const model::ParameterEntry& entry) { return table.holds_first(entry); });
}

// Weights that lie on each rank as its table says, for who asks.
struct Published {
  // Collective.
  Published(const policy::Ranks& ranks, const std::string& host, const model::ParameterTable& table, at::ScalarType dtype) {
    const std::string address = "tcp://" + host + ":0";
    if (holds_something_first(table))
      server.emplace(table, dtype, address, comm::stays_on_this_machine(address) ? std::nullopt : std::optional(comm::make_keys()));
    int rank = 0;
    for (const std::string& each : comm::texts_of_all(ranks.world, server ? server->place() : "")) {
      if (!each.empty()) holders.push_back({each, table.layout, rank, dtype});
      ++rank;
    }
  }
  std::optional<pull::WeightServer> server;  // none where others before this rank have all of it
  std::vector<pull::WeightHolder> holders;   // of all ranks
};

/// Ownership  owns the door and what this rank publishes.
/// Errors     StepFailed where no worker comes, and for what failed with one; the queue keeps what it had.
class WorkerSource final : public SampleSource {
 public:
  /// Collective.
  explicit WorkerSource(const WorkerParts& parts);

  std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) override;
  bool accept(const data::Batch& scored) override;
  void give_back(const data::Batch& batch) override;
  void run_ahead() override;
  void meet() override {}
  std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) override;
  void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) override;
  Generation* generation() override { return nullptr; }
  void record(monitor::Recorder& recorder) override;
  SourceState state() override;
  void restore(SourceState state) override;

 private:
  std::exception_ptr fault();
  void work_early();
  worker::Welcome welcome() const;
  void publish(data::PolicyVersion version);

  WorkerParts parts_;
  std::optional<Published> weights_, adapters_;   // where adapters are trained, weights_ are those below them
  bool has_base_ = false;                         // those are published
  std::optional<worker::Door> door_;              // on the first rank
  std::vector<data::GroupId> in_line_;            // finished groups, whose bodies came before their batch was complete
  int64_t tokens_ = 0;                          // of batches since the last record
  double recorded_s_ = 0;
};

WorkerSource::WorkerSource(const WorkerParts& parts) : parts_(parts) {
  const policy::TrainedRole& trained = parts.actor.trained();
  const model::ModelOnRank& model = trained.lora() ? trained.model() : parts.actor.rollout_model();
  const std::string host = worker::listening_host(parts.config);
  weights_.emplace(parts.ranks, host, model.table(), model.values().scalar_type());
  if (trained.lora()) adapters_.emplace(parts.ranks, host, trained.trainer().lora()->table(), at::kFloat);
  if (!parts.ranks.is_first()) return;
  door_.emplace(parts.config, takes(parts.config), [&prompts = parts.prompts](data::GroupId id) { return prompts.at_position(value(id)); });
}

worker::Welcome WorkerSource::welcome() const {
  return {config::to_yaml(parts_.config), worker::small_files(parts_.model_dir), weights_->holders,
          adapters_ ? adapters_->holders : std::vector<pull::WeightHolder>(), parts_.max_context_tokens};
}

std::exception_ptr WorkerSource::fault() {
  if (!door_) return nullptr;
  try {
    door_->check();
  } catch (const UserError&) {
    return std::current_exception();
  } catch (const PeerError&) {
    return std::current_exception();
  }
  return nullptr;
}

// Passes of groups that will be in the batch, as far as can be told, while workers generate the others.
void WorkerSource::work_early() {
  if (!parts_.early) return;
  for (const data::Group& head : parts_.bodies.take_in([&](queue::TensorCache& into) { return door_->take_early(into); }))
    in_line_.push_back(head.id);
  const data::EarlyGroups groups = parts_.early->plan(in_line_);
  if (groups.empty()) return;
  parts_.early->lend(groups);
  parts_.early->make(groups);
}

std::optional<data::Batch> WorkerSource::next_batch(data::StepId step, data::PolicyVersion version) {
  comm::Group& world = parts_.ranks.world;
  for (;;) {
    if (stop_agreed(world, *parts_.config.reward.notices, parts_.stop, fault())) return std::nullopt;
    check_filtered(comm::value_of_first(world, door_ ? door_->num_filtered() : 0), parts_.config);
    std::vector<data::Group> heads =
        parts_.bodies.take_in([&](queue::TensorCache& into) { return door_->take(step, into); });
    if (!heads.empty()) {
      for (const data::Group& head : heads)
        for (const data::Sample& sample : head.samples) tokens_ += parts_.bodies.num_tokens(sample.id);
      std::erase_if(in_line_, [&](data::GroupId id) { return std::ranges::find(heads, id, &data::Group::id) != heads.end(); });
      return data::Batch{step, version, std::move(heads)};
    }
    work_early();
    if (door_ && parts_.tell) parts_.tell(door_->num_finished() * parts_.config.schedule.queue.group_size, 0);
    if (door_) std::this_thread::sleep_for(kMoment);
  }
}

bool WorkerSource::accept(const data::Batch&) {
  TANDEM_CHECK(false, "workers score what they generate");
  return true;
}

void WorkerSource::give_back(const data::Batch& batch) {
  if (door_) door_->give_back();
  parts_.bodies.drop(batch.groups);
}

void WorkerSource::run_ahead() { TANDEM_CHECK(false, "no rank generates"); }

std::vector<data::GroupId> WorkerSource::commit(data::StepId step, data::PolicyVersion after) {
  std::vector<data::GroupId> left;
  if (door_) {
    left = door_->commit(step, after);
    if (value(step) == parts_.config.run.steps) door_->end();
  }
  left = comm::values_of_all(parts_.ranks.world, left);
  std::erase_if(in_line_, [&](data::GroupId id) { return std::ranges::find(left, id) != left.end(); });
  parts_.bodies.drop(data::bare_heads(left, parts_.config.schedule.queue.group_size));
  return left;
}

// Adapters go on weights that no update changes: those are published once.
void WorkerSource::publish(data::PolicyVersion version) {
  if (!adapters_) {
    if (weights_->server) weights_->server->publish(parts_.actor.rollout_model().values(), version);
    return;
  }
  if (weights_->server && !std::exchange(has_base_, true)) weights_->server->publish(parts_.actor.base_values(), worker::kBaseVersion);
  if (adapters_->server) adapters_->server->publish(parts_.actor.trained().trainer().lora()->values(), version);
}

// Workers are let in once there is something to generate with.
void WorkerSource::switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) {
  (void)send();
  publish(version);
  parts_.ranks.world.barrier();
  if (door_ && !door_->is_open() && value(version) < parts_.config.run.steps) door_->open(welcome());
}

void WorkerSource::record(monitor::Recorder& recorder) {
  const double now = now_s(), since_s = std::max(1e-9, now - std::exchange(recorded_s_, now));
  recorder.set("throughput/rollout_tokens_per_s", static_cast<double>(std::exchange(tokens_, 0)) / since_s);
  recorder.set("time/reward_s", 0);
  if (door_) door_->record(recorder);
  int64_t copied = 0, sent = 0;
  for (const std::optional<Published>* each : {&weights_, &adapters_}) {
    if (!*each || !(*each)->server) continue;
    const pull::WeightServerCounts counts = (*each)->server->counts();
    copied += counts.bytes_copied, sent += counts.bytes_sent;
  }
  recorder.set("workers/weight_bytes_copied", comm::sum_over(parts_.ranks.world, static_cast<double>(copied)));
  recorder.set("workers/weight_bytes_sent", comm::sum_over(parts_.ranks.world, static_cast<double>(sent)));
}

SourceState WorkerSource::state() {
  if (!door_) return {};
  worker::Door::State state = door_->state();
  return {value(state.next_group), std::move(state.queue)};
}

void WorkerSource::restore(SourceState state) {
  if (door_) door_->restore({data::GroupId{state.next_group}, std::move(state.queue)}, data::PolicyVersion{state.version});
}

}  // namespace

std::unique_ptr<SampleSource> make_worker_source(const WorkerParts& parts) { return std::make_unique<WorkerSource>(parts); }

}  // namespace tandem::runtime
