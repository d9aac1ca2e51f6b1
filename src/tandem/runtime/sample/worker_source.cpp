// SPDX-License-Identifier: Apache-2.0
// Batches that workers generate.
//
//   takes     heads of a batch, on the first rank, which tells the others
//   fetches   their bodies from where they were made: each replica that trains a share, by one of its ranks, ahead of the batch
//   gives     both to the ranks that train (batch_rows.h)
//   waits for workers
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"
#include "tandem/comm/start_skew.h"
#include "tandem/device/device.h"
#include "tandem/pull/weight_server.h"
#include "tandem/runtime/sample/sample_source.h"
#include "tandem/worker/body_reader.h"
#include "tandem/worker/door.h"

namespace tandem::runtime {
namespace {

constexpr std::chrono::milliseconds kMoment{5};  // between two looks for a batch

// Whether no rank before this one holds something that it holds.
bool holds_something_first(const model::ParameterTable& table) {
  return std::ranges::any_of(table.entries, [&](const model::ParameterEntry& entry) { return table.holds_first(entry); });
}

// Two processes with the same text share their loopback addresses.
std::string network() {
  std::error_code none;
  const std::filesystem::path space = std::filesystem::read_symlink("/proc/self/ns/net", none);
  return comm::kernel_id() + " " + space.string();
}

// World ranks that fetch bodies, in turns: the first of each replica.
std::vector<int> fetchers(const policy::Ranks& ranks) {
  const int first = ranks.placement.train.first;
  std::vector<int> of_replica(static_cast<size_t>(ranks.train_layout.dp));
  for (int rank = ranks.train_layout.world() - 1; rank >= 0; --rank)
    of_replica[static_cast<size_t>(ranks.train_layout.dp_rank(rank))] = first + rank;
  return of_replica;
}

// Weights that lie on each rank as its table says, for who asks.
struct Published {
  // Collective.
  Published(const policy::Ranks& ranks, const std::string& host, const model::ParameterTable& table, at::ScalarType dtype) {
    const std::string address = "tcp://" + host + ":0";
    if (holds_something_first(table)) server.emplace(table, dtype, address);
    int rank = 0;
    for (const std::string& each : comm::texts_of_all(ranks.world, server ? server->place() : "")) {
      if (!each.empty()) holders.push_back({each, table.layout, rank, dtype});
      ++rank;
    }
  }
  std::optional<pull::WeightServer> server;  // none where others before this rank have all of it
  std::vector<pull::WeightHolder> holders;   // of all ranks
};

queue::GroupLimits limits_of(const WorkerParts& parts) {
  const model::ModelConfig& model = parts.actor.config();
  return {.group_size = parts.config.schedule.queue.group_size,
          .prompt_tokens = parts.max_context_tokens,
          .response_tokens = parts.config.rollout.sampling.max_new_tokens,
          .vocab_size = model.vocab_size,
          .num_experts = model.moe.num_experts,
          .route_width = parts.actor.route_width()};
}

// With the run's own prompt in place of what a worker says of it.
std::vector<int64_t> measures_with(const data::Prompt& prompt, std::vector<int64_t> measures) {
  const auto width = static_cast<size_t>(queue::num_measures());
  for (size_t at = 0; at < measures.size(); at += width) {
    const auto of_first = [&](const std::string& text) { return at == 0 ? std::ssize(text) : 0; };
    measures[at + queue::kPromptText] = of_first(prompt.text);
    measures[at + queue::kAnswer] = of_first(prompt.answer);
    measures[at + queue::kDataSource] = of_first(prompt.data_source);
  }
  return measures;
}

// What any rank lacks, and what is wrong with it. Collective.
std::vector<worker::Lost> lost_by_any(const std::vector<worker::Lost>& here, comm::Group& world) {
  std::vector<data::GroupId> groups;
  for (const worker::Lost& each : here) groups.push_back(each.group);
  std::map<data::GroupId, std::string> faults;  // several ranks may lack one
  for (const data::GroupId group : comm::values_of_all(world, groups)) faults[group];
  std::vector<worker::Lost> all;
  for (auto& [group, fault] : faults) {
    const auto own = std::ranges::find(here, group, &worker::Lost::group);
    for (const std::string& said : comm::texts_of_all(world, own == here.end() ? "" : own->fault))
      if (fault.empty()) fault = said;
    all.push_back({group, std::move(fault)});
  }
  return all;
}

std::exception_ptr fault_of(std::optional<worker::Door>& door) {
  if (!door) return nullptr;
  try {
    door->check();
  } catch (const UserError&) {
    return std::current_exception();
  } catch (const PeerError&) {
    return std::current_exception();
  }
  return nullptr;
}

/// Ownership  owns the door and what this rank publishes.
/// Errors     StepFailed where no worker comes, and for what failed with one; the queue keeps what it had.
class WorkerSource final : public SampleSource {
 public:
  /// Collective.
  explicit WorkerSource(const WorkerParts& parts);

  std::optional<data::Batch> next_batch(data::StepId step, data::PolicyVersion version) override;
  std::vector<data::GroupId> beyond_batch() const override { return in_line_; }
  void give_back(const data::Batch& batch) override;
  std::vector<data::GroupId> commit(data::StepId step, data::PolicyVersion after) override;
  void switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) override;
  void know_weights(data::PolicyVersion version, uint64_t checksum) override {
    if (door_) door_->know_weights(version, checksum);
  }
  void record(monitor::Recorder& recorder) override;
  SourceState state() override;
  void restore(SourceState state) override;

 private:
  struct Told {
    bool is_batch = false;
    queue::answer::Taken groups;
  };
  Told tell(Told told) const;
  int fetcher_of(data::GroupId group, const std::string& store) const;
  bool bring(queue::answer::Taken& groups, bool now);
  void take_arrived();
  void forget(std::span<const data::GroupId> groups);
  void work_early();
  worker::Welcome welcome() const;

  WorkerParts parts_;
  std::optional<Published> weights_, adapters_;   // where adapters are trained, weights_ are those below them
  bool has_base_ = false;                         // those are published
  std::optional<worker::Door> door_;              // on the first rank
  std::string device_;                            // the kind of this rank's
  std::vector<int> fetchers_;                     // world ranks: of each replica that trains, the one that fetches
  std::vector<bool> beside_first_;                // which ranks reach what the first rank reaches at a loopback address
  std::optional<worker::BodyReader> reader_;      // where this rank is one of the former
  std::set<data::GroupId> told_;                  // groups of which all ranks have heard
  std::vector<data::GroupId> in_line_;            // those that have, and are in no batch yet
  std::vector<data::GroupId> batch_;
  int64_t tokens_ = 0;                          // of batches since the last record
  int64_t padding_bytes_ = 0;                   // that rows of all batches do not have
  double recorded_s_ = 0;
};

WorkerSource::WorkerSource(const WorkerParts& parts) : parts_(parts) {
  const policy::Ranks& ranks = parts.ranks;
  const std::vector<std::string> networks = comm::texts_of_all(ranks.world, network());
  for (const std::string& each : networks) beside_first_.push_back(each == networks.front());
  const policy::TrainedRole& trained = parts.actor.trained();
  const model::ModelOnRank& model = trained.lora() ? trained.model() : parts.actor.rollout_model();
  if (std::ranges::find(beside_first_, false) != beside_first_.end()) worker::require_reached(parts.config);
  const bool is_beside = beside_first_[static_cast<size_t>(ranks.world.rank())];
  const std::string host = is_beside ? worker::listening_host(parts.config) : worker::reached_host(parts.config);
  weights_.emplace(parts.ranks, host, model.table(), model.values().scalar_type());
  if (trained.lora()) adapters_.emplace(parts.ranks, host, trained.trainer().lora()->table(), at::kFloat);
  fetchers_ = fetchers(ranks);
  if (ranks.is_first() || std::ranges::find(fetchers_, ranks.world.rank()) != fetchers_.end())
    reader_.emplace(limits_of(parts), parts.config.workers.lease_s);
  device_ = device::backend_of(model.values().device()).name;
  if (!ranks.is_first()) return;
  door_.emplace(parts.config, takes(parts.config), [&prompts = parts.prompts](data::GroupId id) { return prompts.at_position(value(id)); },
                parts.tells_answers);
}

worker::Welcome WorkerSource::welcome() const {
  return {config::to_yaml(parts_.config), worker::small_files(parts_.model_dir), weights_->holders,
          adapters_ ? adapters_->holders : std::vector<pull::WeightHolder>(), parts_.max_context_tokens,
          worker::reward_files(parts_.config.reward, parts_.config.episode.environment), limits_of(parts_),
          worker::drawing_of(parts_.config, device_)};
}

// What the first rank has to say.
WorkerSource::Told WorkerSource::tell(Told told) const {
  comm::Group& world = parts_.ranks.world;
  if (world.size() == 1) return told;
  std::vector<std::byte> bytes;
  if (door_) bytes = queue::to_bytes(queue::Answer{{}, told.is_batch, {}, told.groups});
  queue::Answer heard = queue::answer_of(comm::all_gather_bytes(world, bytes).front());
  return {heard.number != 0, std::get<queue::answer::Taken>(std::move(heard.what))};
}

// Replicas take turns. What only the first rank reaches it fetches itself.
int WorkerSource::fetcher_of(data::GroupId group, const std::string& store) const {
  const int rank = fetchers_[static_cast<size_t>(value(group)) % fetchers_.size()];
  const bool reaches = beside_first_[static_cast<size_t>(rank)] || !comm::stays_on_this_machine(store);
  return !store.empty() && reaches ? rank : 0;
}

// All ranks have heard of these groups, and have their own prompts for them. False if bodies that were to come now did not: then the queue
// has their groups again.
bool WorkerSource::bring(queue::answer::Taken& groups, bool now) {
  const comm::Group& world = parts_.ranks.world;
  std::vector<worker::Wanted> mine;
  for (size_t i = 0; i < groups.heads.size(); ++i) {
    data::Group& head = groups.heads[i];
    data::Prompt prompt = door_ ? door_->prompt_of(head.id) : parts_.prompts.at_position(value(head.id));  // its thread asks, too
    head.prompt.row = prompt.row;
    const int fetcher = fetcher_of(head.id, groups.stores[i]);
    const bool is_own = groups.stores[i].empty();  // from a checkpoint, whole
    if (told_.insert(head.id).second)
      parts_.bodies.expect(head, is_own ? groups.measures[i] : measures_with(prompt, groups.measures[i]), fetcher);
    const bool is_here = parts_.bodies.arrivals().holds({head.samples.front().id, queue::kRecord});
    if (is_here || fetcher != world.rank()) continue;
    if (is_own) mine.push_back({head.id, door_->own_store(), groups.measures[i]});
    else mine.push_back({head.id, groups.stores[i], groups.measures[i], std::move(prompt)});
  }
  if (!now) {
    if (reader_) reader_->fetch_ahead(std::move(mine));
    return true;
  }
  std::vector<worker::Lost> lost;
  if (reader_) lost = reader_->fetch_now(std::move(mine));
  lost = lost_by_any(lost, parts_.ranks.world);
  if (door_ && !lost.empty()) door_->lose(lost);
  std::vector<data::GroupId> lost_groups;
  for (const worker::Lost& each : lost) lost_groups.push_back(each.group);
  forget(lost_groups);
  return lost.empty();
}

// All ranks hear which bodies have come.
void WorkerSource::take_arrived() {
  std::vector<data::GroupId> arrived;
  if (reader_) arrived = reader_->take(parts_.bodies.arrivals());
  for (const data::GroupId group : comm::values_of_all(parts_.ranks.world, arrived)) in_line_.push_back(group);
}

void WorkerSource::forget(std::span<const data::GroupId> groups) {
  if (reader_) reader_->drop(groups);
  for (const data::GroupId group : groups) told_.erase(group), std::erase(in_line_, group);
  parts_.bodies.drop(data::bare_heads(groups, parts_.config.schedule.queue.group_size));
}

// Passes of groups that will be in the batch, as far as can be told, while workers generate the others.
void WorkerSource::work_early() {
  if (!parts_.early) return;
  const data::EarlyGroups groups = parts_.early->plan(in_line_);
  if (groups.empty()) return;
  parts_.early->lend(groups);
  parts_.early->make(groups);
}

std::optional<data::Batch> WorkerSource::next_batch(data::StepId step, data::PolicyVersion version) {
  comm::Group& world = parts_.ranks.world;
  for (;;) {
    if (stop_agreed(world, *parts_.config.reward.notices, parts_.stop, fault_of(door_))) return std::nullopt;
    check_filtered(comm::value_of_first(world, door_ ? door_->num_filtered() : 0), parts_.config);
    Told told;
    if (door_) {
      told.groups = door_->take(step);
      told.is_batch = !told.groups.heads.empty();
      if (!told.is_batch) told.groups = door_->ahead();
    }
    told = tell(std::move(told));
    const bool all = bring(told.groups, told.is_batch);
    take_arrived();
    if (told.is_batch && all) {
      padding_bytes_ += queue::padding_bytes(told.groups.measures);
      for (const data::Group& head : told.groups.heads) {
        batch_.push_back(head.id);
        std::erase(in_line_, head.id);
        for (const data::Sample& sample : head.samples) tokens_ += parts_.bodies.num_tokens(sample.id);
      }
      return data::Batch{step, version, std::move(told.groups.heads)};
    }
    work_early();
    if (door_ && parts_.tell) parts_.tell(door_->num_finished() * parts_.config.schedule.queue.group_size, 0);
    if (door_) std::this_thread::sleep_for(kMoment);
    comm::count_waited(door_ ? std::chrono::duration<double>(kMoment).count() : 0);
  }
}

void WorkerSource::give_back(const data::Batch& batch) {
  if (batch_.empty()) return;  // it is trained
  if (door_) door_->give_back();
  parts_.bodies.take_back(batch.groups);
  in_line_.insert(in_line_.end(), batch_.begin(), batch_.end());
  batch_.clear();
}

std::vector<data::GroupId> WorkerSource::commit(data::StepId step, data::PolicyVersion after) {
  std::vector<data::GroupId> left;
  if (door_) {
    left = door_->commit(step, after);
    if (value(step) == parts_.config.run.steps) door_->end();
  }
  left = comm::values_of_all(parts_.ranks.world, left);
  forget(left);
  for (const data::GroupId group : batch_) told_.erase(group);
  batch_.clear();
  return left;
}

// Adapters go on weights that no update changes: those are published once. Workers are let in once there is something to generate with.
void WorkerSource::switch_weights(const rollout::SendWeights& send, data::PolicyVersion version) {
  (void)send();
  const policy::TrainedRole& trained = parts_.actor.trained();
  if (!adapters_) {
    if (weights_->server) weights_->server->publish(parts_.actor.rollout_model().values(), version);
  } else if (weights_->server && !std::exchange(has_base_, true)) {
    weights_->server->publish(trained.model().contents(), worker::kBaseVersion);
  }
  if (adapters_ && adapters_->server) adapters_->server->publish(trained.trainer().lora()->values(), version);
  parts_.ranks.world.barrier();
  if (door_ && !door_->is_open() && value(version) < parts_.config.run.steps) door_->open(welcome());
}

void WorkerSource::record(monitor::Recorder& recorder) {
  const double now = now_s(), since_s = std::max(1e-9, now - std::exchange(recorded_s_, now));
  recorder.set("throughput/rollout_tokens_per_s", static_cast<double>(std::exchange(tokens_, 0)) / since_s);
  if (door_) {
    door_->record(recorder);
    recorder.set("data/epoch", parts_.prompts.epochs(value(door_->next_group())));
  }
  recorder.set("workers/bytes_read", comm::sum_over(parts_.ranks.world, reader_ ? static_cast<double>(reader_->bytes_received()) : 0.0));
  recorder.set("workers/bytes_prefetched", comm::sum_over(parts_.ranks.world, reader_ ? static_cast<double>(reader_->bytes_ahead()) : 0.0));
  recorder.set("workers/padding_bytes_saved", static_cast<double>(padding_bytes_));
  int64_t copied = 0, sent = 0;
  for (const std::optional<Published>* each : {&weights_, &adapters_}) {
    if (!*each || !(*each)->server) continue;
    const pull::WeightServerCounts counts = (*each)->server->counts();
    copied += counts.bytes_copied, sent += counts.bytes_sent;
  }
  recorder.set("workers/weight_bytes_copied", comm::sum_over(parts_.ranks.world, static_cast<double>(copied)));
  recorder.set("workers/weight_bytes_sent", comm::sum_over(parts_.ranks.world, static_cast<double>(sent)));
}

// Finished groups come to the first rank, bodies and all.
SourceState WorkerSource::state() {
  std::set<data::GroupId> here;
  std::optional<worker::Door::State> state;
  const auto with_body = [&](data::Group head) { return std::move(parts_.bodies.complete({std::move(head)}).front()); };
  for (;;) {
    Told told;
    if (door_) state = door_->state(here, with_body, told.groups);
    told = tell(std::move(told));
    if (told.groups.heads.empty()) break;
    const bool all = bring(told.groups, true);
    take_arrived();
    if (!all) continue;
    std::vector<data::GroupId> groups;
    for (const data::Group& head : told.groups.heads) groups.push_back(head.id);
    parts_.bodies.gather(groups);
    here.insert(groups.begin(), groups.end());
  }
  if (!door_) return {};
  return {value(state->next_group), std::move(state->queue)};
}

void WorkerSource::restore(SourceState state) {
  if (door_) door_->restore({data::GroupId{state.next_group}, std::move(state.queue)}, data::PolicyVersion{state.version});
}

}  // namespace

std::unique_ptr<SampleSource> make_worker_source(const WorkerParts& parts) { return std::make_unique<WorkerSource>(parts); }

}  // namespace tandem::runtime
