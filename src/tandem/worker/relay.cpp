// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/relay.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/base/clock.h"
#include "tandem/base/log.h"
#include "tandem/comm/endpoint.h"
#include "tandem/config/config.h"
#include "tandem/device/process.h"
#include "tandem/queue/backend/wire/server.h"
#include "tandem/queue/backend/wire/transport.h"
#include "tandem/queue/client.h"
#include "tandem/queue/body/store.h"
#include "tandem/reward/backend/private_folder.h"
#include "tandem/worker/door.h"
#include "tandem/worker/welcome.h"
#include "tandem/worker/worker.h"

namespace tandem::worker {
namespace {

constexpr double kRelayAskS = 0.02;      // between two questions for work: so it hears of new weights, too
constexpr double kIdleBeatS = 1;         // between two signs of life without a worker: so it hears that the run is over
constexpr size_t kMostPassedOn = 16;     // groups at once
constexpr std::chrono::milliseconds kRelayPause{5};
constexpr double kRelayGoodbyeS = 5;     // for workers to hear that the run is over

// Of the oldest token of a group that goes on.
data::PolicyVersion first_version(std::span<const data::Sample> begun, data::PolicyVersion otherwise) {
  for (const data::Sample& sample : begun)
    if (!sample.versions.empty()) otherwise = std::min(otherwise, data::PolicyVersion{sample.versions.front()});
  return otherwise;
}

std::vector<data::GroupId> groups_of(std::span<const data::Group> heads) {
  std::vector<data::GroupId> groups;
  for (const data::Group& head : heads) groups.push_back(head.id);
  return groups;
}

}  // namespace

// What was leased from above is gone. Its workers join again, too: what they generate is nobody's.
void Relay::join() {
  const queue::Incarnation before = above_.incarnation();
  const std::string welcome = above_.join();
  if (!above_.has_joined()) return;
  held_.clear();
  beat_s_.reset();  // which of the finished ones are of use, it hears at once
  has_more_ = false;
  if (!desk_ || above_.incarnation() != before) return begin_anew(welcome);
  log::warning("this relay joined the run anew, and so do its workers");
  std::lock_guard lock(mutex_);
  for (const auto& [client, said] : desk_->clients()) desk_->forget(client);
  std::vector<data::GroupId> all;
  for (const auto& [group, prompt] : prompts_) all.push_back(group);
  controller_->evict(all);
  desk_->forget_over();
  prompts_.clear();
}

// Another history, or the first: what workers have of the one before is refused, and they throw it away.
void Relay::begin_anew(const std::string& welcome) {
  terms_ = setup_.terms_of(welcome);
  const queue::LeaseTerms leases{terms_.lease_s, setup_.next_incarnation()};
  std::lock_guard lock(mutex_);
  prompts_.clear();
  desk_.reset();
  controller_.emplace(terms_.queue, leases, terms_.takes);
  (void)controller_->follow(above_.newest());
  const auto prompt_of = [this](data::GroupId group) {  // none of a group that left since it was leased
    const auto found = prompts_.find(group);
    return found == prompts_.end() ? data::Prompt() : found->second;
  };
  desk_.emplace(*controller_, leases.incarnation, "", prompt_of, welcome);
  desk_->serve_workers(false, terms_.limits);  // it measures bodies itself
  desk_->admit_by([this](const queue::call::Join& worker) { return refusal_of(terms_.drawing, worker); });
}

bool Relay::turn(double now_s) {
  if (!above_.has_joined()) {
    join();
    return true;
  }
  say_who_is_barred();
  if (tell_failures()) return true;
  const bool passed = pass_on(), asked = ask(now_s);
  if (!above_.has_joined()) return true;
  double pause_s = terms_.lease_s / 3;
  {
    std::lock_guard lock(mutex_);
    if (controller_->queue().version() < above_.newest()) (void)controller_->follow(above_.newest());
    if (desk_->num_clients() == 0) pause_s = std::min(pause_s, kIdleBeatS);
  }
  if (has_more_ || !beat_s_ || now_s - *beat_s_ > pause_s) {
    beat_s_ = now_s;
    beat();
  }
  return passed || asked || has_more_;
}

void Relay::say_who_is_barred() {
  const std::vector<queue::Barred> barred = locked(mutex_, [&] { return desk_->take_barred(); });
  for (const queue::Barred& each : barred)
    log::warning("the worker at ", each.host.empty() ? each.store.substr(0, each.store.find(' ')) : each.host, " is refused from now on: ",
                 each.why);
}

// What failed with a worker may fail everywhere: whoever decides for all hears it, by a client that goes. Then this one is another.
bool Relay::tell_failures() {
  const std::vector<std::string> failures = locked(mutex_, [&] { return desk_->take_failures(); });
  if (failures.empty()) return false;
  log::warning("a worker failed: ", failures.front());
  above_.close(failures.front());
  join();
  return true;
}

// The same rules as of the run, which would hold this relay to them.
std::string Relay::fault_of_body(const data::Group& group) const {
  const std::span<const data::Group> one(&group, 1);
  const std::vector<int64_t> measures = queue::measures_of(one, data::fields_of(one));
  std::string fault = queue::fault_of_measures(measures, group.version, above_.newest(), terms_.limits);
  for (size_t i = 0; i < group.samples.size() && fault.empty(); ++i)
    fault = queue::fault_of_tokens(group.samples[i], std::ssize(group.prompt.ids), group.version, above_.newest(), terms_.limits);
  if (!fault.empty()) return fault;
  std::lock_guard lock(mutex_);
  const auto prompt = prompts_.find(group.id);
  return prompt == prompts_.end() || prompt->second.ids == group.prompt.ids ? "" : "answers another prompt than its own";
}

// Finished groups of one worker: their bodies come here, then their heads go above, under the leases from there.
bool Relay::pass_on() {
  std::string store;
  std::vector<data::Group> heads;
  {
    std::lock_guard lock(mutex_);
    for (const data::GroupId group : controller_->queue().finished()) {
      const std::string at = desk_->body_of(group).store;
      if (heads.empty()) store = at;
      if (at == store && heads.size() < kMostPassedOn) heads.push_back(controller_->queue().group(group));
    }
  }
  if (heads.empty()) return false;
  std::vector<data::GroupId> groups = groups_of(heads);
  queue::TensorCache rows(queue::body_fields());
  if (!setup_.read(store, data::ids_of(heads), rows)) {
    log::warning(groups.size(), " finished groups went with the worker that had them: they are generated anew");
    summary_.lost += std::ssize(groups);
    std::lock_guard lock(mutex_);
    desk_->lose(groups, store);
    return true;
  }
  std::vector<data::Group> whole;
  std::vector<queue::LeaseNumber> leases;
  for (data::Group& head : std::exchange(heads, {})) {
    data::Group group = head;
    queue::add_body(group, rows);
    const std::string fault = fault_of_body(group);
    if (!fault.empty()) {
      ++summary_.lost;
      std::lock_guard lock(mutex_);
      desk_->accuse(head.id, fault);
      desk_->lose({&head.id, 1}, store);
      continue;
    }
    leases.push_back(held_.at(head.id));
    whole.push_back(std::move(group));
    heads.push_back(std::move(head));
  }
  if (whole.empty()) return true;
  groups = groups_of(heads);
  data::Fields columns = data::fields_of(whole);
  std::vector<int64_t> measures = queue::measures_of(whole, columns);
  const std::vector<bool> kept = above_.put(leases, std::move(heads), std::move(columns), std::move(measures));
  evict(groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    ++(kept[i] ? summary_.groups : summary_.late);
    if (kept[i]) finished_.insert(groups[i]);
  }
  return true;
}

// Without a worker it asks for nothing: who asks has a share of what there is.
bool Relay::ask(double now_s) {
  if (!above_.has_joined() || (asked_s_ && now_s - *asked_s_ < kRelayAskS)) return false;
  asked_s_ = now_s;
  const auto wanted = locked(mutex_, [&] { return desk_->num_clients() > 0 ? std::optional(controller_->take_wanted()) : std::nullopt; });
  if (!wanted) return false;
  std::vector<queue::Task> tasks = above_.lease(wanted->groups, wanted->version, wanted->workers);
  for (queue::Task& task : tasks) adopt(std::move(task), wanted->version);
  return !tasks.empty();
}

// No worker with weights older than those that were asked with gets it; if it goes on, none with older ones than its first token.
void Relay::adopt(queue::Task task, data::PolicyVersion version) {
  const data::GroupId group = task.lease.group;
  evict({&group, 1});  // there may be bodies of it that nobody could read
  held_[group] = task.lease.number;
  std::lock_guard lock(mutex_);
  const data::PolicyVersion start = first_version(task.begun, version);
  controller_->adopt(task.lease, start);
  prompts_[group] = std::move(task.prompt);
  if (task.lease.begun != queue::kNoLease) desk_->begin_with(task.lease.begun, {group, {}, start, std::move(task.begun)});
}

// Speaks for all: each group that it holds, whoever has it, and the tokens that workers reported since.
void Relay::beat() {
  std::vector<queue::Standing> standings;
  std::vector<data::GroupId> reported;
  queue::Desk::Reports reports;
  data::PolicyVersion version = above_.newest();  // what groups without a token will begin with at least
  {
    std::lock_guard lock(mutex_);
    std::set<data::GroupId> without;
    for (const data::Waiting& each : controller_->follow(version)) {
      without.insert(each.id);
      version = std::min(version, each.version);
    }
    reports = desk_->take_reports(queue::kMostReportBytes);
    reported = groups_of(reports.groups);
    for (const auto& [group, lease] : held_)
      standings.push_back({group, lease, !without.contains(group), std::ranges::binary_search(reported, group)});
  }
  has_more_ = reports.more;
  const std::vector<data::GroupId> finished(finished_.begin(), finished_.end());
  evict(above_.evicted(version, standings, finished, std::move(reports.groups)));
}

void Relay::evict(std::span<const data::GroupId> groups) {
  for (const data::GroupId group : groups) held_.erase(group), finished_.erase(group);
  std::lock_guard lock(mutex_);
  controller_->evict(groups);
  desk_->forget_over();
  for (const data::GroupId group : groups) prompts_.erase(group);
}

void Relay::leave() {
  if (!above_.has_joined()) return;
  do beat();
  while (has_more_ && above_.has_joined());
  above_.close();
}

namespace {

// What a relay reads of the recipe: lease, sizes, and whether groups come with scores.
RelayTerms terms_of_welcome(const std::string& welcome, const std::string& dir) {
  const Welcome told = welcome_of(welcome);
  write_files({{"config.yaml", told.recipe}}, dir);
  const config::RunConfig config = config::load_config(dir + "/config.yaml", {});
  const queue::Takes takes = config::scores_in_stage(config) ? queue::Takes::kUnscored : queue::Takes::kScored;
  return {config.schedule.queue, config.workers.lease_s, takes, told.limits, told.drawing};
}

std::string keys_file(const RelayRequest& request) { return request.token_file + ".secret"; }

comm::ServerKeys keys_of_relay(const RelayRequest& request) {
  if (!request.token_file.empty()) return kept_keys(keys_file(request), request.token_file);
  throw UserError("--relay", "nothing keeps strangers out", "--relay-token FILE, where the token that workers need is to be written");
}

// A relay with its sockets.
class RelayProcess {
 public:
  explicit RelayProcess(const RelayRequest& request)
      : request_(request),
        keys_(keys_of_relay(request)),
        store_(queue::body_fields()),
        transport_({.address = endpoint_of(request.address),
                    .token = request.token,
                    .store_address = "tcp://" + host_for(request.address, request.host) + ":0",
                    .deadline_s = request.patience_s},
                   store_),
        client_(transport_, store_,
                {.deadline_s = request.patience_s,
                 .stop = request.stop,
                 .waits = says_that_it_waits(request.address, request.patience_s)}),
        relay_(client_, {.terms_of = [this](const std::string& welcome) { return terms_of(welcome); },
                         .next_incarnation = [this] { return next_start(keys_file(request_)); },
                         .read = [this](const std::string& store, std::span<const data::SampleId> samples,
                                        queue::TensorCache& into) { return reader_->read(store, samples, into); }}) {}

  RelaySummary work() {
    bool was_stopped = false;
    try {
      relay_.join();
      if (!relay_.has_ended()) {
        open();
        was_stopped = !pass_on();
      }
    } catch (const Interrupted&) {  // while the run gave no answer
      was_stopped = true;
    } catch (...) {
      try {
        if (client_.has_joined()) client_.close();
      } catch (const std::exception&) {  // then its leases end
      }
      throw;
    }
    if (server_ && relay_.has_ended()) say_goodbye();
    RelaySummary summary = relay_.summary();
    summary.was_stopped = was_stopped;
    return summary;
  }

 private:
  RelayTerms terms_of(const std::string& welcome) {
    const RelayTerms terms = terms_of_welcome(welcome, folder_.path());
    reader_.emplace(terms.lease_s / 4, terms.limits.row_bytes());
    return terms;
  }

  void open() {
    server_.emplace(relay_.desk(), relay_.mutex(), endpoint_of(request_.listen), keys_);
    log::info("joined the run at ", request_.address, "; workers join this relay by `", device::program_path(), " rollout --join ",
              server_->address().substr(std::string("tcp://").size()), " --token ", request_.token_file, "`");
  }

  // False if it is asked to stop before the run is over.
  bool pass_on() {
    Deadline worker = Deadline::after_s(request_.patience_s);
    while (!relay_.has_ended()) {
      if (server_->fault()) std::rethrow_exception(server_->fault());
      if (request_.stop && request_.stop()) {
        relay_.leave();
        return false;
      }
      if (num_workers() > 0) worker = Deadline::after_s(request_.patience_s);
      if (worker.passed()) throw PeerError(join_text("no worker joined this relay for ", request_.patience_s, " s (--patience)"));
      if (!relay_.turn(now_s())) std::this_thread::sleep_for(kRelayPause);
    }
    return true;
  }

  int64_t num_workers() {
    std::lock_guard lock(relay_.mutex());
    return relay_.desk().num_clients();
  }

  void say_goodbye() {
    locked(relay_.mutex(), [&] { relay_.desk().end(); });
    for (const Deadline goodbye = Deadline::after_s(kRelayGoodbyeS); num_workers() > 0 && !goodbye.passed();)
      std::this_thread::sleep_for(kRelayPause);
  }

  const RelayRequest& request_;
  const reward::PrivateFolder folder_;
  const comm::ServerKeys keys_;
  queue::Store store_;
  queue::wire::Transport transport_;
  queue::Client client_;
  std::optional<queue::wire::StoreReader> reader_;
  Relay relay_;
  std::optional<queue::wire::Server> server_;  // last: its thread uses the relay's desk
};

}  // namespace

RelaySummary relay_for_run(const RelayRequest& request) { return RelayProcess(request).work(); }

}  // namespace tandem::worker
