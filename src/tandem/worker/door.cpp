// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/door.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/device/process.h"
#include "tandem/queue/store.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStartsFile = "workers.json";
constexpr const char* kJournalFile = "controller.jsonl";
constexpr double kGoodbyeS = 5;          // for workers to hear that the run is over
constexpr int64_t kMostRestarts = 1000;  // of local workers

std::string listen_of(const config::RunConfig& config) {
  const std::string& listen = config.workers.listen;
  return "tcp://" + (listen.empty() ? std::string("127.0.0.1:0") : listen);
}

nlohmann::json read_starts(const config::RunConfig& config) {
  const std::string path = config.run.dir + "/" + kStartsFile;
  return fs::exists(path) ? read_json_object(path) : nlohmann::json::object();
}

// Each start has another number than those before, whether they left a checkpoint or not.
queue::Incarnation next_incarnation(const config::RunConfig& config) {
  nlohmann::json starts = read_starts(config);
  const int64_t number = starts.value("incarnation", int64_t{0}) + 1;
  starts["incarnation"] = number;
  write_file(config.run.dir + "/" + kStartsFile, starts.dump() + "\n");
  return queue::Incarnation{number};
}

// Where the start before answered, if any port will do: its workers look for the run there.
std::string address_before(const config::RunConfig& config) {
  return listen_of(config).ends_with(":0") ? read_starts(config).value("address", std::string()) : std::string();
}

bool has_ended(pid_t process) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == process;
}

std::vector<data::SampleId> samples_of(std::span<const data::Group> heads) { return data::ids_of(heads); }

}  // namespace

std::string listening_host(const config::RunConfig& config) {
  const std::string listen = listen_of(config).substr(6);
  return listen.substr(0, listen.rfind(':'));
}

comm::ServerKeys kept_keys(const std::string& path, const std::string& token) {
  if (!fs::exists(path)) {
    const comm::ServerKeys made = comm::make_keys();
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR);
    const std::string text = nlohmann::json{{"public", made.public_key}, {"secret", made.secret_key}}.dump() + "\n";
    const bool wrote = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (file >= 0) ::close(file);
    if (!wrote) throw UserError(path, "cannot be written", "a folder with room");
  }
  const nlohmann::json keys = read_json_object(path);
  write_file(token, keys.at("public").get<std::string>() + "\n");
  return {keys.at("public"), keys.at("secret")};
}

std::optional<comm::ServerKeys> keys_of_run(const config::RunConfig& config) {
  if (comm::stays_on_this_machine(listen_of(config))) return std::nullopt;
  return kept_keys(config.run.dir + "/worker_keys.json", config.run.dir + "/token");
}

Door::Door(const config::RunConfig& config, queue::Takes takes, PromptOf prompt_of)
    : config_(config),
      prompt_of_(std::move(prompt_of)),
      keys_(keys_of_run(config)),
      incarnation_(next_incarnation(config)),
      controller_(config.schedule.queue, {config.workers.lease_s, incarnation_}, takes, config.reward.shaping()),
      own_(queue::body_fields()),
      own_server_(own_, "tcp://" + listening_host(config) + ":0", keys_ ? std::optional(comm::make_keys()) : std::nullopt) {}

Door::~Door() {
  if (!is_over_) return;
  for (const Deadline goodbye = Deadline::after_s(kGoodbyeS); !goodbye.passed();) {
    {
      std::lock_guard lock(mutex_);
      if (desk_->num_clients() == 0) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (reward::Process& worker : local_) (void)worker.wait_or_end(kGoodbyeS);
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
  desk_.emplace(controller_, incarnation_, own_server_.place(), prompt_of_, to_text(welcome));
  desk_->require_measures(std::ssize(queue::body_fields()) + static_cast<int64_t>(queue::kNumVersions));
  const std::string before = address_before(config_);
  try {
    if (!before.empty()) server_.emplace(*desk_, mutex_, before, keys_);
  } catch (const UserError&) {  // another has it now
  }
  if (!server_) server_.emplace(*desk_, mutex_, listen_of(config_), keys_);
  nlohmann::json starts = read_starts(config_);
  starts["address"] = server_->address();
  write_file(config_.run.dir + "/" + kStartsFile, starts.dump() + "\n");
  const std::string token = keys_ ? " --token " + config_.run.dir + "/token" : "";
  log::info("workers join by `", device::program_path(), " rollout --join ", server_->address().substr(6), token, "`");
  seen_worker_s_ = now_s();
  for (int64_t i = 0; i < config_.workers.local; ++i) local_.push_back(start_worker(i));
}

// Requires the mutex.
void Door::drop_over() {
  const auto is_over = [&](data::GroupId group) { return !controller_.queue().is_outstanding(group); };
  std::erase_if(told_, is_over);
  std::vector<data::GroupId> over;
  for (const auto& [group, measures] : own_measures_)
    if (is_over(group)) over.push_back(group);
  for (const data::GroupId group : over) own_measures_.erase(group);
  own_.drop(samples_of(data::bare_heads(over, config_.schedule.queue.group_size)));
}

reward::Process Door::start_worker(int64_t number) const {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const int64_t cores = config_.parallel.threads > 0 ? config_.parallel.threads : device::num_cores();
  reward::Launch launch;
  launch.argv = {self.string()};
  if (self.filename() != "tandem") launch.argv.insert(launch.argv.end(), {"-m", "tandem"});  // a host in Python
  launch.argv.insert(launch.argv.end(), {"rollout", "--join", server_->address().substr(6), "--threads",
                                         std::to_string(std::max<int64_t>(1, cores / config_.workers.local))});
  if (keys_) launch.argv.insert(launch.argv.end(), {"--token", config_.run.dir + "/token", "--host", listening_host(config_)});
  launch.inherit_env = true;
  const std::string folder = config_.run.dir + "/workers";
  fs::create_directories(folder);
  const std::string log = join_text(folder, "/", number, ".log");
  const reward::Fd out(::open(log.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644));
  if (!out) throw UserError(log, "cannot be written", "a run folder with room");
  launch.fds = {-1, out.get(), out.get()};
  return reward::Process(launch);
}

void Door::check_local() {
  for (size_t i = 0; i < local_.size(); ++i) {
    if (!has_ended(local_[i].id())) continue;
    const std::string how = reward::status_text(local_[i].end());
    if (++num_restarts_ > kMostRestarts)
      throw PeerError(join_text("local workers ended ", num_restarts_, " times, the last with ", how, "; workers/*.log says why"));
    log::warning("worker ", i, " of this run ended with ", how, ": it is started again (workers/", i, ".log)");
    local_[i] = start_worker(static_cast<int64_t>(i));
  }
}

void Door::check() {
  if (!is_open() || is_over_) return;
  if (server_->fault()) std::rethrow_exception(server_->fault());
  std::vector<std::string> failures;
  {
    std::lock_guard lock(mutex_);
    if (desk_->num_clients() > 0) seen_worker_s_ = now_s();
    failures = desk_->take_failures();
  }
  if (!failures.empty()) throw PeerError("a worker failed: " + failures.front());
  check_local();
  if (now_s() - seen_worker_s_ > config_.workers.wait_s)
    throw PeerError(join_text("no worker for ", config_.workers.wait_s, " s (workers.wait_s)"));
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

void Door::lose(std::span<const data::GroupId> groups) {
  log::warning(groups.size(), " finished groups went with the worker that had them: they are generated anew");
  std::lock_guard lock(mutex_);
  for (const data::GroupId group : groups) {
    if (own_measures_.contains(group)) throw PeerError(join_text("group ", value(group), " of the checkpoint cannot be read"));
    told_.erase(group);
    desk_->lose({&group, 1}, desk_->body_of(group).store);
  }
}

void Door::give_back() {
  std::lock_guard lock(mutex_);
  if (desk_) desk_->give_back();
}

std::vector<data::GroupId> Door::commit(data::StepId step, data::PolicyVersion after) {
  queue::Left left;
  {
    std::lock_guard lock(mutex_);
    left = desk_->commit(step, after);
    drop_over();
  }
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
        std::pair("workers/connected", desk_->num_clients()), std::pair("workers/leases_ended", leases.ended),
        std::pair("workers/groups_late", leases.late), std::pair("workers/groups_lost", leases.lost),
        std::pair("workers/calls_refused", desk_->counters().of_another_incarnation + desk_->counters().of_unknown),
        std::pair("workers/leases_undone", journal_->undone().leases), std::pair("workers/groups_undone", journal_->undone().finished)})
    recorder.set(name, static_cast<double>(count));
}

}  // namespace tandem::worker
