// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/door.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/base/file/durable_file.h"
#include "tandem/device/process.h"
#include "tandem/queue/body/store.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStartsFile = "workers.json";
constexpr const char* kJournalFile = "controller.jsonl";
constexpr double kGoodbyeS = 5;          // for workers to hear that the run is over
constexpr double kAwayS = 1;             // between two looks, while a step is made
constexpr int64_t kManyLost = 64;        // groups
constexpr std::string_view kScheme = "tcp://";
constexpr double kSayS = 0.2;            // between two lines of the log about workers
constexpr double kProbeS = 1;            // between two looks for dead ones
constexpr double kSilentS = 1;           // after which one may be dead: it asks for work much more often
constexpr double kAloneS = 5;            // after which the log says that nobody is there
constexpr int64_t kMostNamed = 8;        // in one
constexpr int64_t kMostChecksums = 64;   // of versions

std::string listen_of(const config::RunConfig& config) {
  const std::string& listen = config.workers.listen;
  return "tcp://" + (listen.empty() ? std::string("127.0.0.1:0") : listen);
}

nlohmann::json read_starts(const config::RunConfig& config) {
  const std::string path = config.run.dir + "/" + kStartsFile;
  return fs::exists(path) ? read_json_object(path) : nlohmann::json::object();
}

// What workers heard of must not be forgotten, whatever happens to the machine.
void write_starts(const config::RunConfig& config, const nlohmann::json& starts) {
  write_durable(config.run.dir + "/" + kStartsFile, starts.dump() + "\n");
  sync_directory(config.run.dir);
}

// Each start has another number than those before, whether they left a checkpoint or not.
queue::Incarnation next_incarnation(const config::RunConfig& config) {
  nlohmann::json starts = read_starts(config);
  const int64_t number = starts.value("incarnation", int64_t{0}) + 1;
  starts["incarnation"] = number;
  write_starts(config, starts);
  return queue::Incarnation{number};
}

// Where the start before answered, if any port will do: its workers look for the run there.
std::string address_before(const config::RunConfig& config) {
  const std::string listen = listen_of(config), before = read_starts(config).value("address", std::string());
  const auto host_of = [](const std::string& address) { return address.substr(0, address.rfind(':')); };
  return listen.ends_with(":0") && host_of(before) == host_of(comm::numeric_address(listen)) ? before : "";
}

// For the user's eyes alone, whole or not at all.
void write_secret(const std::string& path, const std::string& text) {
  const std::string part = path + ".partial";
  const Descriptor file(::open(part.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR));
  const bool wrote = ::write(file.number(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(file.number()) == 0;
  if (!wrote || ::rename(part.c_str(), path.c_str()) != 0) throw UserError(path, "cannot be written", "a folder with room");
}

// The how many-th that joined since the start.
std::string name_of(queue::WorkerId worker) { return join_text("worker ", value(worker) & 0xffffffff); }

// Without key and scheme.
std::string address_of(const std::string& store) {
  const std::string address = store.substr(0, store.find(' '));
  const size_t scheme = address.find("://");
  return scheme == std::string::npos ? address : address.substr(scheme + 3);
}

std::string text_of(const queue::Desk::ClientReport& report, double now, double since_s) {
  const auto [worker, store, groups, tokens] = report;
  std::ostringstream text;
  text.precision(1);
  text << std::fixed;
  if (worker.speaks_for > 1) text << "a relay of " << worker.speaks_for << ", ";
  text << worker.leases << " groups under way, " << groups << " finished, " << std::llround(static_cast<double>(tokens) / since_s)
       << " tokens/s, weights of version " << value(worker.version) << ", heard " << std::max(0.0, now - worker.seen_s) << " s ago, at "
       << address_of(store);
  return text.str();
}

}  // namespace

std::string listening_host(const config::RunConfig& config) {
  const std::string listen = listen_of(config).substr(6);
  return listen.substr(0, listen.rfind(':'));
}

comm::ServerKeys kept_keys(const std::string& path, const std::string& token) {
  if (!fs::exists(path)) {
    const comm::ServerKeys made = comm::make_keys();
    write_secret(path, nlohmann::json{{"public", made.public_key}, {"secret", made.secret_key}, {"starts", 0}}.dump() + "\n");
  }
  const nlohmann::json keys = read_json_object(path);
  write_secret(token, keys.at("public").get<std::string>() + "\n");
  return {keys.at("public"), keys.at("secret")};
}

queue::Incarnation next_start(const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 30;     // its leases have numbers that begin with it
  constexpr int64_t kByClock = int64_t{1} << 29;  // an older Tandem took the seconds since 2020, and kept no count
  nlohmann::json keys = read_json_object(path);
  const nlohmann::json before = keys.value("starts", nlohmann::json(kByClock));
  if (!before.is_number_integer() || before.get<int64_t>() < 0 || before.get<int64_t>() >= kMost)
    throw UserError(path, "says that " + before.dump() + " starts had its keys", join_text("a count from 0 to ", kMost - 1));
  const int64_t number = before.get<int64_t>() + 1;
  keys["starts"] = number;
  write_secret(path, keys.dump() + "\n");
  sync_directory(fs::absolute(path).parent_path());
  return queue::Incarnation{number};
}

void require_reached(const config::RunConfig& config) {
  if (comm::stays_on_this_machine(listen_of(config)))
    throw UserError("workers.listen", join_text("is ", config.workers.listen.empty() ? "empty" : config.workers.listen,
                                                ", and ranks on another machine have weights that workers need"),
                    "an address of the first rank's machine that other machines reach, such as 10.0.0.7:7070");
}

std::string reached_host(const config::RunConfig& config) { return comm::local_host_towards(listen_of(config)); }

void try_listening(const config::RunConfig& config) {
  try {
    const std::string listen = listen_of(config);
    (void)comm::Endpoint::at(listen, comm::make_keys());
  } catch (const UserError& e) {
    throw UserError("workers.listen", e.what(), "another address or port, or port 0 for any that is free");
  }
}

comm::ServerKeys keys_of_run(const config::RunConfig& config) {
  return kept_keys(config.run.dir + "/worker_keys.json", config.run.dir + "/token");
}

Door::Door(const config::RunConfig& config, queue::Takes takes, PromptOf prompt_of, bool tells_answers)
    : config_(config),
      prompt_of_(std::move(prompt_of)),
      tells_answers_(tells_answers),
      keys_(keys_of_run(config)),
      incarnation_(next_incarnation(config)),
      controller_(config.schedule.queue, {config.workers.lease_s, incarnation_}, takes, config.reward.shaping()),
      own_(queue::body_fields()),
      own_server_(own_, "tcp://" + listening_host(config) + ":0") {}

Door::~Door() {
  if (!is_over_) return;
  for (const Deadline goodbye = Deadline::after_s(kGoodbyeS); !goodbye.passed();) {
    if (locked(mutex_, [&] { return desk_->num_clients() == 0; })) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (local_) local_->wait_ended(kGoodbyeS);
}

void Door::restore(const State& state, data::PolicyVersion version) {
  TANDEM_CHECK(!is_open(), "workers are at it");
  if (state.queue.empty()) return;
  controller_.restore(state.queue, state.next_group, [&](data::Group group) {
    const std::span<const data::Group> one(&group, 1);
    data::Fields columns = data::fields_of(one);
    own_measures_[group.id] = queue::measures_of(one, columns);
    own_.put(data::ids_of(one), std::move(columns));
    return queue::head_of(group);
  });
  num_filtered_told_ = controller_.queue().counters().filtered - controller_.queue().num_unsaid();
  if (controller_.queue().version() != version)
    throw UserError("queue.bin of the checkpoint",
                    join_text("is of policy version ", value(controller_.queue().version()), ", and its state.json of ", value(version)),
                    "the files as the run wrote them");
}

void Door::open(const Welcome& welcome) {
  journal_.emplace(config_.run.dir + "/" + kJournalFile, incarnation_, controller_.queue().version());
  controller_.tell([this](const queue::Decision& decision) { journal_->add(decision); });
  if (const Undone& undone = journal_->undone(); undone.any())
    log::info("what workers did after this checkpoint is refused: ", undone.updates, " updates, ", undone.finished, " finished groups, ",
              undone.leases, " leases; it is done anew");
  drawing_ = welcome.drawing;
  const auto told = [this](data::GroupId group) {
    data::Prompt prompt = prompt_of_(group);
    if (!tells_answers_) prompt.answer.clear();
    return prompt;
  };
  desk_.emplace(controller_, incarnation_, own_server_.place(), told, to_text(welcome));
  desk_->serve_workers(true, welcome.limits);
  desk_->check_weights_by([this](data::PolicyVersion version, int64_t checksum) { return fault_of_weights(version, checksum); });
  desk_->admit_by([this](const queue::call::Join& worker) { return refusal_of(drawing_, worker); });
  const std::string before = address_before(config_);
  try {
    if (!before.empty()) server_.emplace(*desk_, mutex_, before, keys_);
  } catch (const UserError&) {  // another has it now
  }
  if (!server_) server_.emplace(*desk_, mutex_, listen_of(config_), keys_);
  nlohmann::json starts = read_starts(config_);
  starts["address"] = server_->address();
  write_starts(config_, starts);
  log::info("workers join by `", join_command(), "`");
  seen_worker_s_ = recorded_s_ = now_s();
  local_.emplace(config_, server_->address().substr(kScheme.size()));
}

std::string Door::join_command() const {
  return join_text(device::program_path(), " rollout --join ", server_->address().substr(kScheme.size()), " --token ",
                   fs::absolute(config_.run.dir + "/token").string());
}

// Requires the mutex.
void Door::drop_over() {
  const auto is_over = [&](data::GroupId group) { return !controller_.queue().is_outstanding(group); };
  std::erase_if(told_, is_over);
  std::vector<data::GroupId> over;
  for (const auto& [group, measures] : own_measures_)
    if (is_over(group)) over.push_back(group);
  for (const data::GroupId group : over) own_measures_.erase(group);
  own_.drop(data::ids_of(data::bare_heads(over, config_.schedule.queue.group_size)));
}

// A process that is gone says so when it is called: its groups need not wait for the end of its lease. A look each second, at one in turn.
void Door::give_up_dead() {
  if (now_s() - probed_s_ < kProbeS) return;
  probed_s_ = now_s();
  const std::map<queue::WorkerId, queue::call::Join> silent = locked(mutex_, [&] {
    std::map<queue::WorkerId, queue::call::Join> clients = desk_->clients();
    for (const queue::WorkerState& each : controller_.workers())
      if (probed_s_ - each.seen_s <= kSilentS) clients.erase(each.id);
    return clients;
  });
  if (silent.empty()) return;
  const auto next = silent.upper_bound(probed_);
  const auto& [worker, said] = next == silent.end() ? *silent.begin() : *next;
  probed_ = worker;
  if (!comm::is_refused(said.store.substr(0, said.store.find(' ')))) return;
  std::lock_guard lock(mutex_);
  desk_->forget(worker);
}

std::string Door::worker_text(queue::WorkerId worker, const queue::call::Join& said) const {
  const std::string drawing = drawing_text(drawing_, said);
  return join_text(name_of(worker), " (", address_of(said.store), drawing.empty() ? "" : ", ", drawing, ')');
}

// Each once: from then on it is not heard.
void Door::say_who_is_barred() {
  const std::vector<queue::Barred> barred = locked(mutex_, [&] { return desk_->take_barred(); });
  for (const queue::Barred& each : std::span(barred).first(std::min<size_t>(barred.size(), kMostNamed)))
    log::warning(each.worker ? name_of(*each.worker) : std::string("somebody"), " at ", each.host.empty() ? "an unknown host" : each.host,
                 each.worker ? join_text(" (", address_of(each.store), ')') : "", " is refused from now on: ", each.why,
                 "; what it had under way is generated anew");
  if (std::ssize(barred) > kMostNamed) log::warning("and ", std::ssize(barred) - kMostNamed, " more, for the like");
}

// A line at most each moment, however many there are.
void Door::say_who_came() {
  if (now_s() - said_s_ < kSayS) return;
  said_s_ = now_s();
  std::map<queue::WorkerId, queue::call::Join> there = locked(mutex_, [&] { return desk_->clients(); });
  const auto names = [this](const auto& some, const auto& others) {
    std::string text;
    int64_t count = 0;
    for (const auto& [id, said] : some) {
      if (others.contains(id) || ++count > kMostNamed) continue;
      text += join_text(text.empty() ? "" : ", ", worker_text(id, said));
    }
    return count > kMostNamed ? join_text(text, " and ", count - kMostNamed, " more") : text;
  };
  const std::string came = names(there, workers_), went = names(workers_, there);
  workers_ = std::move(there);
  if (came.empty() && went.empty()) return;
  log::info(came.empty() ? "" : "joined: " + came, came.empty() || went.empty() ? "" : "; ", went.empty() ? "" : "gone: " + went, "; ",
            workers_.size(), workers_.size() == 1 ? " worker is" : " workers are", " there");
}

void Door::know_weights(data::PolicyVersion version, uint64_t checksum) {
  std::lock_guard lock(mutex_);
  checksums_[version] = static_cast<int64_t>(checksum);
  while (std::ssize(checksums_) > kMostChecksums) checksums_.erase(checksums_.begin());
}

// Requires the mutex. A version that is not known yet, or no longer, is not compared.
std::string Door::fault_of_weights(data::PolicyVersion version, int64_t checksum) {
  const auto known = checksums_.find(version);
  if (known == checksums_.end()) return "";
  ++num_compared_;
  return known->second == checksum ? "" : join_text("generates with other weights than the run has as version ", value(version));
}

void Door::check() {
  if (!is_open() || is_over_) return;
  if (server_->fault()) std::rethrow_exception(server_->fault());
  std::vector<std::string> failures;
  int64_t num_finished = 0, went_on = 0;
  bool is_alone = false;
  const double now = now_s();
  {
    std::lock_guard lock(mutex_);
    const std::vector<queue::WorkerState> workers = controller_.workers();
    if (!workers.empty()) seen_worker_s_ = now;
    failures = desk_->take_failures();
    is_alone = workers.empty();
    num_finished = controller_.lease_counters().finished;
    went_on = num_finished + desk_->counters().went_on;
  }
  say_who_came();
  say_who_is_barred();
  give_up_dead();
  if (has_lost_own_) throw PeerError("finished groups of the checkpoint could not be fetched from this process");
  if (!failures.empty()) throw PeerError("a worker failed: that at " + failures.front());
  local_->check(num_finished);
  const bool was_away = now - std::exchange(checked_s_, now) > kAwayS;  // as for a step: then nobody may have had anything to do
  if (went_on != std::exchange(went_on_, went_on) || was_away || is_alone) went_on_s_ = now;
  const double alone_s = now - seen_worker_s_;
  if (alone_s > config_.workers.wait_s)
    throw PeerError(join_text("no worker for ", config_.workers.wait_s, " s (workers.wait_s); they join by `", join_command(), "`"));
  if (alone_s > kAloneS && is_alone && !std::exchange(said_alone_, true))
    log::warning("no worker is there: the run waits for one, ", config_.workers.wait_s, " s at most (workers.wait_s). They join by `",
                 join_command(), "`");
  if (alone_s <= kAloneS) said_alone_ = false;
  if (now - went_on_s_ > std::max(config_.workers.wait_s, config_.workers.lease_s))
    throw PeerError(join_text("workers are there, and none drew a token or finished a group for ", now - went_on_s_,
                              " s (workers.wait_s)"));
}

queue::answer::Taken Door::take(data::StepId step) {
  std::lock_guard lock(mutex_);
  queue::answer::Taken taken = desk_->take(step, own_server_.place()).value_or(queue::answer::Taken());
  for (size_t i = 0; i < taken.heads.size(); ++i)
    if (const auto own = own_measures_.find(taken.heads[i].id); own != own_measures_.end())
      taken.stores[i] = "", taken.measures[i] = own->second;
  return taken;
}

// Requires the mutex.
queue::answer::Taken Door::places_of(std::span<const data::GroupId> groups) const {
  queue::answer::Taken places{data::bare_heads(groups, config_.schedule.queue.group_size), {}, {}};
  for (const data::GroupId group : groups) {
    const auto own = own_measures_.find(group);
    queue::Desk::Body body = own == own_measures_.end() ? desk_->body_of(group) : queue::Desk::Body{"", own->second};
    places.stores.push_back(std::move(body.store));
    places.measures.push_back(std::move(body.measures));
  }
  return places;
}

queue::answer::Taken Door::ahead() {
  std::lock_guard lock(mutex_);
  std::vector<data::GroupId> groups;
  for (const data::GroupId group : controller_.queue().next_in_line())
    if (told_.insert(group).second) groups.push_back(group);
  return places_of(groups);
}

data::Prompt Door::prompt_of(data::GroupId group) const {
  std::lock_guard lock(mutex_);
  return prompt_of_(group);
}

// A worker that died is no fault; the groups of one that nobody reaches would be lost again and again.
void Door::lose(std::span<const Lost> groups) {
  std::lock_guard lock(mutex_);
  const std::string from = groups.empty() ? "" : address_of(desk_->body_of(groups.front().group).store);
  log::warning(groups.size(), " finished groups could not be fetched from ", from, ": they are generated anew");
  for (const auto& [group, fault] : groups) {
    has_lost_own_ |= own_measures_.contains(group);  // nobody can generate it as it was
    told_.erase(group);
    const std::string store = desk_->body_of(group).store;
    const bool too_many = ++num_lost_[store] > std::max(kManyLost, 4 * controller_.queue().groups_per_step());
    if (!fault.empty() || too_many)
      desk_->accuse(group, !fault.empty() ? fault : "is one of many that could not be fetched from there: `tandem rollout --host` names an "
                                                    "address of the worker that the run reaches");
    desk_->lose({&group, 1}, store);
  }
}

void Door::give_back() {
  std::lock_guard lock(mutex_);
  if (desk_) desk_->give_back();
}

std::vector<data::GroupId> Door::commit(data::StepId step, data::PolicyVersion after) {
  const queue::Left left = locked(mutex_, [&] {
    queue::Left gone = desk_->commit(step, after);
    num_lost_.clear();
    num_connected_ = desk_->num_clients();
    drop_over();
    return gone;
  });
  journal_->wait_written();
  return left.all();
}

void Door::end() {
  std::lock_guard lock(mutex_);
  if (desk_) desk_->end();
  is_over_ = desk_.has_value();
}

std::optional<Door::State> Door::state(const std::set<data::GroupId>& here, const queue::SampleQueue::Rewrite& saved,
                                       queue::answer::Taken& missing) {
  std::optional<State> state;
  {
    std::lock_guard lock(mutex_);
    std::vector<data::GroupId> others;
    for (const data::GroupId group : controller_.queue().finished())
      if (!here.contains(group)) others.push_back(group);
    if (!others.empty()) {
      told_.insert(others.begin(), others.end());
      missing = places_of(others);
      return std::nullopt;
    }
    state = {controller_.next_group(), controller_.state(saved)};
    if (journal_) journal_->add_saved(controller_.queue().version());
  }
  if (journal_) journal_->wait_written();
  return state;
}

data::GroupId Door::next_group() const {
  std::lock_guard lock(mutex_);
  return controller_.next_group();
}

int64_t Door::num_filtered() const {
  std::lock_guard lock(mutex_);
  return controller_.queue().num_filtered();
}

int64_t Door::num_finished() const {
  std::lock_guard lock(mutex_);
  return std::min(controller_.queue().num_finished(), controller_.queue().groups_per_step());
}

void Door::record(monitor::Recorder& recorder) {
  std::lock_guard lock(mutex_);
  const queue::SampleQueue& queue = controller_.queue();
  const queue::LeaseCounters& leases = controller_.lease_counters();
  for (const auto& [name, count] :
       {std::pair("queue/outstanding", queue.num_outstanding()), std::pair("queue/depth", queue.num_finished()),
        std::pair("staleness/dropped", queue.counters().dropped), std::pair("staleness/waited", queue.counters().waited),
        std::pair("workers/connected", num_connected_), std::pair("workers/leases_ended", leases.ended),
        std::pair("workers/groups_late", leases.late), std::pair("workers/groups_lost", leases.lost),
        std::pair("workers/calls_refused", desk_->counters().of_another_incarnation + desk_->counters().of_unknown),
        std::pair("workers/leases_undone", journal_->undone().leases), std::pair("workers/groups_undone", journal_->undone().finished)})
    recorder.set(name, static_cast<double>(count));
  recorder.set("workers/weights_compared", static_cast<double>(std::exchange(num_compared_, 0)));
  if (const int64_t filtered = queue.counters().filtered; config_.algo.filter_groups)
    recorder.set("data/groups_filtered", static_cast<double>(filtered - std::exchange(num_filtered_told_, filtered)));
  const double now = now_s(), since = std::exchange(recorded_s_, now);
  for (const queue::Desk::ClientReport& each : desk_->report_clients())
    recorder.span(text_of(each, now, std::max(1e-9, now - since)), name_of(each.worker.id), since, std::max(since, each.worker.seen_s));
}

}  // namespace tandem::worker
