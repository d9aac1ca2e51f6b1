// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/worker.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/endpoint.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"
#include "tandem/queue/backend/wire/transport.h"
#include "tandem/queue/client.h"
#include "tandem/queue/body/store.h"
#include "tandem/reward/backend/private_folder.h"
#include "tandem/worker/orders.h"

namespace tandem::worker {
namespace {

constexpr double kAskS = 0.02;       // between two questions for work: so it hears of new weights, too
constexpr double kPeersS = 60;       // for which ranks wait for the first beyond its patience

// One rank of the worker.
class Replica {
 public:
  Replica(const JoinRequest& request, const std::string& dir, comm::Group& world) : options_(request.generator), dir_(dir), world_(world) {}

  struct Report {
    std::vector<data::Group> finished, so_far;
    bool ended = false;
  };
  /// Does what the first rank says. Collective.
  Report obey(Orders mine) {
    Orders orders = orders_of_first(world_, std::move(mine));
    if (generator_ && (orders.ends || !orders.welcome.empty())) generator_->rest();
    if (orders.ends) return {.finished = {}, .so_far = {}, .ended = true};
    if (!orders.welcome.empty()) {
      generator_.reset();
      generator_.emplace(welcome_of(orders.welcome), options_, dir_, world_);
    }
    if (!generator_) return {};
    generator_->cancel(orders.cancelled);
    for (queue::Task& task : orders.tasks) generator_->admit(std::move(task));
    generator_->take_weights(orders.newest);
    Report report;
    if (!orders.reported.empty()) report.so_far = generator_->so_far(orders.reported);
    report.finished = generator_->finished();
    return report;
  }
  /// None before the first welcome.
  const std::optional<Generator>& generator() const { return generator_; }

 private:
  const GeneratorOptions options_;
  const std::string dir_;
  comm::Group& world_;
  std::optional<Generator> generator_;
};

int num_ranks(const GeneratorOptions& options) {
  if (options.layout.empty()) return 1;
  const model::Layout layout = model::parse_layout(options.layout, "--layout");
  if (layout.dp != 1)
    throw UserError("--layout", options.layout + " has several replicas", "one, such as tp2, and another worker for each more");
  return layout.world();
}

// The kind that run.device auto takes on this machine.
std::string device_here(const GeneratorOptions& options) {
  return device::backend_of(device::device_named("auto", "run.device", 0, num_ranks(options))).name;
}

// Its first rank, which alone knows the queue.
class Worker {
 public:
  Worker(const JoinRequest& request, Replica& replica)
      : request_(request),
        replica_(replica),
        store_(queue::body_fields()),
        transport_({.address = endpoint_of(request.address),
                    .token = request.token,
                    .store_address = "tcp://" + request.generator.host + ":0",
                    .deadline_s = request.patience_s},
                   store_),
        client_(transport_, store_,
                {.deadline_s = request.patience_s,
                 .stop = request.stop,
                 .dtype = request.generator.dtype,
                 .device = device_here(request.generator),
                 .waits = says_that_it_waits(request.address, request.patience_s)}) {}

  WorkerSummary work() {
    try {
      join();
      while (!client_.has_ended() && !summary_.was_stopped) {
        if (request_.stop && request_.stop()) leave();
        else if (client_.has_joined()) turn();
        else join();
      }
    } catch (const Interrupted&) {  // while the run gave no answer
      summary_.was_stopped = true;
    } catch (const std::exception& e) {
      tell_failure(e.what());
      throw;
    }
    count();
    (void)replica_.obey({.ends = true});
    return summary_;
  }

 private:
  const Generator& generator() const { return *replica_.generator(); }

  // Of a run that forgot this worker no group goes on here. Of one that began anew nothing does.
  void join() {
    const queue::Incarnation before = client_.incarnation();
    const std::string welcome = client_.join();
    if (!client_.has_joined()) return;
    for (const auto& [group, lease] : leases_) cancelled_.push_back(group);
    leases_.clear();
    tasks_.clear();
    beat_s_ = 0;  // which of the finished ones are of use, it hears at once
    if (replica_.generator() && client_.incarnation() == before) {
      log::warning("the run at ", request_.address, " had given this worker up: it joined anew");
      return;
    }
    count();
    cancelled_.clear();
    take(replica_.obey({.welcome = welcome}).finished);
    log::info("joined the run at ", request_.address);
  }

  // One round: what came back goes to the queue, and there is work for what has room.
  void turn() {
    const double now = now_s();
    const bool beats = now - beat_s_ > generator().lease_s() / 3;
    Orders orders{.newest = client_.newest(), .reported = beats ? begun() : std::vector<data::GroupId>()};
    orders.tasks = std::exchange(tasks_, {});
    orders.cancelled = std::exchange(cancelled_, {});
    Replica::Report report = replica_.obey(std::move(orders));
    take(std::move(report.finished));
    if (beats) beat(std::move(report.so_far));
    if (now - asked_s_ > kAskS) ask();
  }

  void ask() {
    asked_s_ = now_s();
    const std::optional<data::PolicyVersion> version = generator().told_version();
    client_.tell_weights(generator().weights_checksum());
    const int64_t room = version ? std::max<int64_t>(0, generator().room()) : 0;
    for (queue::Task& task : client_.lease(room, version.value_or(data::PolicyVersion{0}))) {
      leases_[task.lease.group] = task.lease.number;
      finished_.erase(task.lease.group);
      tasks_.push_back(std::move(task));
    }
  }

  // Finished groups go to the queue; their bodies stay here.
  void take(std::vector<data::Group> finished) {
    std::vector<queue::LeaseNumber> leases;
    std::vector<data::Group> heads, groups;
    for (data::Group& group : finished) {
      const auto lease = leases_.find(group.id);
      if (lease == leases_.end()) continue;  // it is over, and the order to cancel it is on its way
      leases.push_back(lease->second);
      leases_.erase(lease);
      heads.push_back(queue::head_of(group));
      group.prompt.text.clear(), group.prompt.answer.clear(), group.prompt.data_source.clear();  // the run has its own
      groups.push_back(std::move(group));
    }
    if (groups.empty()) return;
    data::Fields columns = data::fields_of(groups);
    std::vector<int64_t> measures = queue::measures_of(groups, columns);
    const std::vector<bool> kept = client_.put(leases, heads, std::move(columns), std::move(measures));
    for (size_t i = 0; i < kept.size(); ++i) {
      ++(kept[i] ? summary_.groups : summary_.late);
      if (kept[i]) finished_.insert(heads[i].id);
    }
  }

  std::vector<data::GroupId> begun() const {
    std::set<data::GroupId> without = generator().state().without_token;
    for (const queue::Task& task : tasks_) without.insert(task.lease.group);
    std::vector<data::GroupId> groups;
    for (const auto& [group, lease] : leases_)
      if (!without.contains(group)) groups.push_back(group);
    return groups;
  }

  // What runs is said with its tokens, so that another can go on with it: in as many calls as that takes.
  void beat(std::vector<data::Group> so_far) {
    beat_s_ = now_s();
    std::map<data::GroupId, data::Group> copies;
    for (data::Group& copy : so_far)
      if (queue::num_bytes(copy) < 3 * queue::kMostReportBytes) copies.emplace(copy.id, std::move(copy));  // else it has no room in a call
    do {
      const GeneratorState state = generator().state();
      std::vector<queue::Standing> standing;
      std::vector<data::Group> reported;
      int64_t bytes = 0;
      for (const auto& [group, lease] : leases_) {
        const auto copy = copies.find(group);
        const bool has_room = copy != copies.end() &&
                              (reported.empty() || bytes + queue::num_bytes(copy->second) <= queue::kMostReportBytes);
        standing.push_back({group, lease, !state.without_token.contains(group), has_room});
        if (!has_room) continue;
        bytes += queue::num_bytes(copy->second);
        reported.push_back(std::move(copy->second));
        copies.erase(copy);
      }
      if (reported.empty()) copies.clear();  // nobody wants the others any more
      const std::vector<data::GroupId> finished(finished_.begin(), finished_.end());
      for (const data::GroupId group : client_.evicted(state.version, standing, finished, std::move(reported))) {
        if (leases_.erase(group) > 0) cancelled_.push_back(group);
        finished_.erase(group);
      }
    } while (!copies.empty() && client_.has_joined());
  }

  void leave() {
    summary_.was_stopped = true;
    if (!client_.has_joined()) return;
    Replica::Report report = replica_.obey({.reported = begun()});
    take(std::move(report.finished));
    beat(std::move(report.so_far));
    client_.close();
  }

  // A reward that fails would fail everywhere: the run hears of it, and ends. All else is this worker's own.
  void tell_failure(const std::string& what) {
    try {
      const bool is_of_all = replica_.generator() && generator().has_reward_failed();
      if (client_.has_joined()) client_.close(is_of_all ? what : "");
    } catch (const std::exception&) {  // then the lease ends
    }
  }

  void count() {
    if (!replica_.generator()) return;
    summary_.tokens += generator().counts().drawn;
    summary_.versions += generator().num_versions();
  }

  const JoinRequest& request_;
  Replica& replica_;
  queue::Store store_;
  queue::wire::Transport transport_;
  queue::Client client_;
  std::map<data::GroupId, queue::LeaseNumber> leases_;  // of groups that are not finished
  std::set<data::GroupId> finished_;                    // whose bodies are here
  std::vector<queue::Task> tasks_;                      // to be admitted in the next turn
  std::vector<data::GroupId> cancelled_;                // to be cancelled there
  WorkerSummary summary_;
  double beat_s_ = 0, asked_s_ = 0;
};

}  // namespace

std::string endpoint_of(const std::string& address) { return address.find("://") == std::string::npos ? "tcp://" + address : address; }

std::string host_for(const std::string& address, const std::string& asked) {
  for (const char* any : {"0.0.0.0", "*", "::", "[::]"})
    if (asked == any) throw UserError("--host", asked + " is every address of this machine", "the one by which the run reaches it");
  if (!asked.empty()) return asked;
  const std::string endpoint = endpoint_of(address);
  return comm::stays_on_this_machine(endpoint) ? "127.0.0.1" : comm::local_host_towards(endpoint);
}

std::function<void(double)> says_that_it_waits(const std::string& address, double patience_s) {
  return [address, patience_s](double seconds) {
    log::info("no answer from ", address, " for ", seconds, " s: it is waited for, ", patience_s, " s at most (--patience)");
  };
}

WorkerSummary generate_for_run(const JoinRequest& asked) {
  JoinRequest request = asked;
  request.generator.host = host_for(asked.address, asked.generator.host);
  const reward::PrivateFolder folder;
  WorkerSummary summary;
  comm::prepare_device_groups(request.patience_s + kPeersS);
  comm::run_local(num_ranks(request.generator), request.patience_s + kPeersS, [&](comm::Group& world) {
    Replica replica(request, folder.path(), world);
    if (world.rank() == 0) summary = Worker(request, replica).work();
    else while (!replica.obey({}).ended) continue;
  });
  return summary;
}

}  // namespace tandem::worker
