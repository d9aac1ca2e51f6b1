// SPDX-License-Identifier: Apache-2.0
// Three processes and the sockets between them, as in a run whose workers are processes: a controller, a worker that puts, and a trainer,
// which is this process, that gets. A put is what makes samples readable for others: the worker leases groups, puts their bodies into its
// store and their heads into the queue. A get is what makes them readable here: the trainer takes the batch, fetches the bodies, reads
// them, and commits the step. A call for metadata leases one group.
#include "queue/queue.h"

#include <malloc.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "queue/child.h"
#include "queue/sample_rows.h"
#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "report.h"
#include "tandem/queue/backend/wire/server.h"
#include "tandem/queue/backend/wire/transport.h"
#include "tandem/reward/backend/private_folder.h"
#include "tandem/worker/journal.h"

namespace tandem::bench {
namespace {

using data::GroupId;
using data::PolicyVersion;
using data::SampleId;
using data::StepId;
using nlohmann::json;

constexpr int64_t kGroupSize = SampleRows::kGroupSize;
constexpr double kLeaseS = 3600, kAnswerS = 60;
constexpr int64_t kCalls = 1000;     // of a client that calls alone
constexpr double kAllCallS = 2;      // for which all call

/// How many leases there may be: any number, or those of `ahead` batches.
queue::Options queue_options(int64_t chunk, int64_t ahead) {
  return {.groups_per_step = chunk / kGroupSize, .group_size = kGroupSize, .staleness = ahead};
}

/// The process that decides. It writes its decisions down, as in a run.
class ControllerProcess {
 public:
  explicit ControllerProcess(const queue::Options& options)
      : journal_(folder_.path() + "/controller.jsonl", queue::Incarnation{0}, PolicyVersion{0}),
        controller_(options, {kLeaseS, queue::Incarnation{0}}),
        desk_(controller_, queue::Incarnation{0}, ""),
        server_(desk_, mutex_, "tcp://127.0.0.1:0") {
    const std::lock_guard lock(mutex_);
    controller_.tell([this](const queue::Decision& decision) { journal_.add(decision); });
  }

  json serve(const json&) {
    const std::lock_guard lock(mutex_);
    if (server_.fault()) std::rethrow_exception(server_.fault());
    const auto heap = ::mallinfo2();
    return {{"place", server_.address() + " " + server_.token()}, {"bytes", heap.uordblks + heap.hblkhd}};
  }

 private:
  const reward::PrivateFolder folder_;
  worker::Journal journal_;
  std::mutex mutex_;
  queue::Controller controller_;
  queue::Desk desk_;
  queue::wire::Server server_;
};

/// What every client has.
struct QueueClient {
  explicit QueueClient(const std::string& place)  // address and token
      : store(SampleRows::fields()),
        transport({.address = place.substr(0, place.find(' ')), .token = place.substr(place.find(' ') + 1), .deadline_s = kAnswerS}, store),
        client(transport, store, {kAnswerS}) {
    client.join();
  }
  queue::Store store;
  queue::wire::Transport transport;
  queue::Client client;
};

std::vector<SampleId> samples_of(std::span<const GroupId> groups) {
  std::vector<SampleId> samples;
  for (const GroupId group : groups)
    for (int64_t i = 0; i < kGroupSize; ++i) samples.push_back(data::sample_id(group, kGroupSize, i));
  return samples;
}

data::Group head_of(GroupId group, PolicyVersion version) {
  data::Group head{group, {}, version, std::vector<data::Sample>(kGroupSize)};
  for (int64_t i = 0; i < kGroupSize; ++i) {
    data::Sample& sample = head.samples[static_cast<size_t>(i)];
    sample.id = data::sample_id(group, kGroupSize, i);
    sample.scored = true;
    sample.score = static_cast<double>(i);
  }
  return head;
}

int64_t sum_of(const std::vector<Row>& rows) {
  int64_t sum = 0;
  for (const Row& row : rows) {
    for (const int64_t token : row.tokens) sum += token;
    for (const float logprob : row.logprobs) sum += std::bit_cast<int32_t>(logprob);
  }
  return sum;
}

/// A process that generates.
class WorkerProcess {
 public:
  json serve(const json& request) {
    const std::string what = request.at("do");
    if (what == "join") return self_ = std::make_unique<QueueClient>(request.at("place").get<std::string>()), json::object();
    if (what == "put") return put(request);
    if (what == "calls") return calls();
    return call_for(request.at("seconds"));
  }

 private:
  /// Batches of `chunk` samples, until there are `samples`. The columns are made before the clock starts: which groups they will be is
  /// known.
  json put(const json& request) {
    SampleRows rows{.seq = request.at("seq"), .ragged = request.at("ragged"), .lengths = request.at("lengths"), .seed = request.at("seed")};
    queue::Client& client = self_->client;
    for (const GroupId group : client.evicted(client.newest(), {}, finished_, {})) std::erase(finished_, group);
    const int64_t chunk = request.at("chunk"), samples = request.at("samples");
    std::vector<std::vector<GroupId>> groups;
    std::vector<data::Fields> columns;
    for (int64_t done = 0; done < samples; done += chunk) {
      auto& of_chunk = groups.emplace_back();
      for (int64_t i = 0; i < chunk / kGroupSize; ++i) of_chunk.push_back(GroupId{next_++});
      columns.push_back(rows.columns_of(samples_of(of_chunk)));
    }
    const double begin_s = now_s();
    for (size_t c = 0; c < groups.size(); ++c) {
      const PolicyVersion version = client.newest();
      std::vector<queue::LeaseNumber> numbers;
      std::vector<data::Group> heads;
      const std::vector<queue::Task> tasks = client.lease(std::ssize(groups[c]), version);
      TANDEM_CHECK(tasks.size() == groups[c].size(), tasks.size(), " leases for ", groups[c].size(), " groups");
      for (size_t i = 0; i < tasks.size(); ++i) {
        const queue::Lease& lease = tasks[i].lease;
        TANDEM_CHECK(lease.group == groups[c][i], "group ", value(lease.group), " where ", value(groups[c][i]), " was next");
        numbers.push_back(lease.number);
        heads.push_back(head_of(lease.group, version));
      }
      for (const bool kept : client.put(numbers, std::move(heads), std::move(columns[c]))) TANDEM_CHECK(kept, "a group was refused");
    }
    const double seconds = now_s() - begin_s;
    for (const auto& of_chunk : groups) finished_.insert(finished_.end(), of_chunk.begin(), of_chunk.end());
    return {{"seconds", seconds}};
  }

  double call_s() {
    const double begin_s = now_s();
    const std::vector<queue::Task> tasks = self_->client.lease(1, PolicyVersion{0});
    const double seconds = now_s() - begin_s;
    TANDEM_CHECK(tasks.size() == 1 && value(tasks[0].lease.group) > last_, "it leased nothing, or a group again");
    last_ = value(tasks[0].lease.group);
    return seconds;
  }
  json calls() {
    std::vector<double> seconds;
    for (int64_t i = 0; i < kCalls; ++i) seconds.push_back(call_s());
    std::ranges::sort(seconds);
    return {{"median_s", seconds[seconds.size() / 2]}, {"p99_s", seconds[seconds.size() * 99 / 100]}};
  }
  json call_for(double seconds) {
    int64_t count = 0;
    for (const Deadline end = Deadline::after_s(seconds); !end.passed(); ++count) (void)call_s();
    return {{"calls", count}};
  }

  std::unique_ptr<QueueClient> self_;
  std::vector<GroupId> finished_;
  int64_t next_ = 0, last_ = -1;
};

Child controller_process(const queue::Options& options) {
  return Child([options]() -> Child::Serve {
    const auto process = std::make_shared<ControllerProcess>(options);
    return [process](const json& request) { return process->serve(request); };
  });
}
Child worker_process() {
  return Child([]() -> Child::Serve {
    const auto process = std::make_shared<WorkerProcess>();
    return [process](const json& request) { return process->serve(request); };
  });
}

/// A controller and a worker; this process trains.
class Pair {
 public:
  Pair(const QueueOptions& options, int64_t chunk)
      : o_(options),
        chunk_(chunk),
        controller_(controller_process(queue_options(chunk, options.samples / chunk))),
        worker_(worker_process()) {}
  void join() {
    const std::string place = controller_.ask({}).at("place");
    worker_.ask({{"do", "join"}, {"place", place}});
    trainer_ = std::make_unique<QueueClient>(place);
  }

  /// One batch of all samples, or several smaller ones, there and back.
  void pass(bool ragged, const std::string& prefix, Figures* figures) {
    ++seed_;
    const int64_t held = controller_.ask({}).at("bytes");
    const json put = worker_.ask({{"do", "put"}, {"seq", o_.seq}, {"ragged", ragged}, {"chunk", chunk_}, {"samples", o_.samples},
                                  {"seed", o_.seed + seed_}, {"lengths", ragged ? o_.lengths : std::vector<int64_t>()}});
    const int64_t held_after = controller_.ask({}).at("bytes");
    const double put_s = put.at("seconds"), begin_s = now_s();
    std::vector<SampleId> samples;
    std::vector<Row> rows;
    for (int64_t done = 0; done < o_.samples; done += chunk_) get(samples, rows);
    const int64_t sum = sum_of(rows);  // a row is not here before it was read
    const double get_s = now_s() - begin_s;
    TANDEM_CHECK(sum == sum_of(rows), "rows that change");
    const SampleRows expected{.seq = o_.seq, .ragged = ragged, .lengths = ragged ? o_.lengths : std::vector<int64_t>(),
                              .seed = static_cast<uint64_t>(o_.seed + seed_)};
    TANDEM_CHECK(std::ssize(rows) == o_.samples, rows.size(), " samples of ", o_.samples);
    for (const Row& row : rows) expected.check(row);
    const double megabytes = static_cast<double>(expected.num_bytes(samples)) / 1e6, count = static_cast<double>(o_.samples);
    rows_.drop(samples);
    if (!figures) return;
    (*figures)[prefix + "put_mb_s"].push_back(megabytes / put_s);
    (*figures)[prefix + "get_mb_s"].push_back(megabytes / get_s);
    (*figures)[prefix + "samples_per_s"].push_back(count / (put_s + get_s));
    (*figures)[prefix + "controller_bytes_per_sample"].push_back(static_cast<double>(held_after - held) / count);
  }

 private:
  void get(std::vector<SampleId>& samples, std::vector<Row>& rows) {
    queue::Client& client = trainer_->client;
    const PolicyVersion version{step_};
    const std::optional<data::Batch> batch = client.take(StepId{++step_}, version);
    TANDEM_CHECK(batch, "no batch is ready for step ", step_);
    TANDEM_CHECK(client.read(rows_), "the bodies of step ", step_, " are gone");
    for (const data::Group& group : batch->groups)
      for (const data::Sample& sample : group.samples) {
        samples.push_back(sample.id);
        rows.push_back(row_of(rows_, sample.id));
      }
    TANDEM_CHECK(client.commit(StepId{step_}, PolicyVersion{step_}).empty(), "groups left untrained");
  }

  const QueueOptions& o_;
  const int64_t chunk_;
  Child controller_, worker_;
  std::unique_ptr<QueueClient> trainer_;
  queue::TensorCache rows_{SampleRows::fields()};
  int64_t step_ = 0, seed_ = 0;
};

/// A controller and many that ask it.
class Crowd {
 public:
  explicit Crowd(const QueueOptions& options) : controller_(controller_process(queue_options(int64_t{1} << 30, 1))) {
    for (int64_t i = 0; i < options.clients; ++i) clients_.push_back(worker_process());
  }
  void join() {
    const std::string place = controller_.ask({}).at("place");
    for (Child& client : clients_) client.ask({{"do", "join"}, {"place", place}});
  }
  void call(Figures* figures) {
    const json alone = clients_.front().ask({{"do", "calls"}});
    for (Child& client : clients_) client.send({{"do", "call"}, {"seconds", kAllCallS}});
    int64_t count = 0;
    for (Child& client : clients_) count += client.receive().at("calls").get<int64_t>();
    if (!figures) return;
    (*figures)["metadata_us"].push_back(1e6 * alone.at("median_s").get<double>());
    (*figures)["metadata_p99_us"].push_back(1e6 * alone.at("p99_s").get<double>());
    (*figures)["metadata_calls_per_s"].push_back(static_cast<double>(count) / kAllCallS);
  }

 private:
  Child controller_;
  std::vector<Child> clients_;
};

}  // namespace

void describe(OptionVisitor& field, QueueOptions& o) {
  field("samples", o.samples, "Samples of a batch, in groups of 8", at_least(8));
  field("seq", o.seq, "Tokens of a sample; ragged ones have an eighth of it or more, or --lengths", at_least(8));
  field("chunk", o.chunk, "Samples of a small batch", at_least(8));
  field("clients", o.clients, "Connected clients where calls are timed", at_least(1));
  field("seed", o.seed, "Seed of the workload", at_least(0));
  describe(field, static_cast<Common&>(o));
}

nlohmann::json queue(const QueueOptions& o) {
  if (o.samples % kGroupSize != 0 || o.chunk % kGroupSize != 0 || o.samples % o.chunk != 0)
    throw UserError("--samples, --chunk", join_text(o.samples, " samples in batches of ", o.chunk),
                    "multiples of 8, and of each other, such as 1024 and 64");
  Pair whole(o, o.samples), chunked(o, o.chunk);  // all processes, before this one has threads
  Crowd crowd(o);
  Figures figures;
  for (auto [pair, name] : {std::pair(&whole, ""), std::pair(&chunked, "chunked_")}) {
    pair->join();
    for (const bool ragged : {false, true})
      for (int64_t i = 0; i <= o.repeats; ++i) pair->pass(ragged, std::string(ragged ? "ragged_" : "") + name, i > 0 ? &figures : nullptr);
  }
  crowd.join();
  for (int64_t i = 0; i <= o.repeats; ++i) crowd.call(i > 0 ? &figures : nullptr);
  json conditions{{"samples", o.samples}, {"seq", o.seq},   {"chunk", o.chunk},
                  {"clients", o.clients}, {"seed", o.seed}, {"repeats", o.repeats}};
  if (!o.lengths.empty()) conditions["lengths"] = lengths_summary(o.lengths);
  return report("queue", conditions, figures);
}

}  // namespace tandem::bench
