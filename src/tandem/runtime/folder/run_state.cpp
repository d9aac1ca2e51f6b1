// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/run_state.h"


#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/base/options.h"
#include "tandem/base/strings.h"
#include "tandem/base/file/durable_file.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/scalar.h"
#include "tandem/device/memory_limit.h"
#include "tandem/device/process.h"

namespace tandem::runtime {
namespace {

using nlohmann::json;

/// Of state.json and of queue.bin beside it. Raise it when an older program would misread what is written.
constexpr int64_t kState_format = 1;
constexpr const char* kUnwritten = "samples.sqlite";

json read_state(const std::string& path) {
  json state = read_json_object(path);
  check_format(state.value("format", json()), path, kState_format);
  return state;
}

// JSON has no infinity and no NaN, and a metric may be one.
json number_json(double value) { return std::isfinite(value) ? json(value) : json(option_text(&value)); }
double number_of(const json& j) { return j.is_string() ? std::strtod(j.get_ref<const std::string&>().c_str(), nullptr) : j.get<double>(); }

json to_json(const RunState& s, const StartModel& start) {
  json out = {{"format", kState_format}, {"step", s.step}, {"version", s.version}, {"next_group", s.next_group},
              {"tokens", s.tokens}, {"seconds", s.seconds}, {"lr_steps", s.lr_steps},
              {"sink_bytes", s.sink_bytes}, {"num_samples", s.num_samples},
              {"start", {{"path", start.path}, {"checksum", start.checksum}}}};
  if (s.kl_coef) out["kl_coef"] = *s.kl_coef;
  if (!s.deviations.empty()) out["deviations"] = s.deviations;
  if (const monitor::ScoreCourse& c = s.scores; c.steps > 0)
    out["scores"] = {{"steps", c.steps}, {"recent", number_json(c.recent)}, {"first", number_json(c.first)},
                     {"best", number_json(c.best)}, {"best_step", c.best_step}, {"fall_told", c.fall_told}};
  for (const auto& [name, value] : s.unconcluded) out["unconcluded"][name] = number_json(value);
  if (s.gap_told) out["gap_told"] = true;
  if (s.before) out["eval_before"] = runtime::to_json(*s.before), out["eval_digest"] = s.eval_digest;
  return out;
}

// A float beyond 64 bits has no integer. Errors: json::exception, as for a text.
int64_t whole(const json& number) {
  if (number.is_number_float()) return json("a float where an integer is due").get<int64_t>();
  return number.get<int64_t>();
}

serve::EvalSummary summary_of(const json& j) {
  return {j.at("accuracy"), j.at("pass_at_k"), whole(j.at("num_problems")), 0, j.at("mean_score"), {}};
}

RunState from_json(const json& j) {
  RunState s;
  s.step = whole(j.at("step"));
  s.version = whole(j.at("version"));
  s.next_group = whole(j.at("next_group"));
  s.tokens = whole(j.at("tokens"));
  s.seconds = j.at("seconds");
  s.lr_steps = j.contains("lr_steps") ? whole(j["lr_steps"]) : 0;
  s.num_samples = j.contains("num_samples") ? whole(j["num_samples"]) : 0;
  for (const auto& [name, bytes] : j.at("sink_bytes").items()) s.sink_bytes[name] = whole(bytes);
  if (j.contains("kl_coef")) s.kl_coef = j["kl_coef"].get<double>();
  s.deviations = j.value("deviations", std::vector<double>());
  if (j.contains("scores")) {
    const json& c = j["scores"];
    s.scores = {whole(c.at("steps")),    number_of(c.at("recent")),  number_of(c.at("first")),
                number_of(c.at("best")), whole(c.at("best_step")), c.at("fall_told")};
  }
  if (j.contains("unconcluded"))
    for (const auto& [name, value] : j["unconcluded"].items()) s.unconcluded[name] = number_of(value);
  s.gap_told = j.value("gap_told", false);
  s.eval_digest = j.value("eval_digest", "");
  if (j.contains("eval_before")) {
    const json& b = j["eval_before"];
    s.before = summary_of(b);
    if (b.contains("sets"))
      for (const auto& [name, set] : b["sets"].items()) s.before->sets.push_back({name, summary_of(set)});
  }
  return s;
}

// Numbers that no run has. Errors: UserError.
void check_numbers(const RunState& s, int64_t step_of_folder, const std::string& file) {
  const auto refuse = [&](const std::string& what) {
    throw UserError(file, what, "the file as the run wrote it, or an earlier checkpoint");
  };
  const auto check = [&](const char* name, double number) {
    if (!(number >= 0) || !std::isfinite(number)) refuse(join_text("has ", name, " ", number));
  };
  check("step", static_cast<double>(s.step));
  check("version", static_cast<double>(s.version));
  check("next_group", static_cast<double>(s.next_group));
  check("tokens", static_cast<double>(s.tokens));
  check("seconds", s.seconds);
  check("lr_steps", static_cast<double>(s.lr_steps));
  check("num_samples", static_cast<double>(s.num_samples));
  check("kl_coef", s.kl_coef.value_or(0));
  for (const double deviation : s.deviations) check("deviations", deviation);
  for (const auto& [name, bytes] : s.sink_bytes) check(("sink_bytes of " + name).c_str(), static_cast<double>(bytes));
  if (s.step != step_of_folder) refuse(join_text("is the state of step ", s.step, ", and its folder that of step ", step_of_folder));
}

// Of all ranks. Collective.
Sums joined(comm::Group& world, const Sums& mine) {
  std::string lines;
  for (const auto& [name, sum] : mine) lines += sum + " " + name + "\n";
  Sums all;
  for (const std::string& text : comm::texts_of_all(world, lines))
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      const size_t space = text.find(' ', at);
      all[text.substr(space + 1, text.find('\n', space) - space - 1)] = text.substr(at, space - at);
    }
  return all;
}

// The newest whole checkpoint; every rank reads a share of the files. Rank 0 says which folders there are. Collective.
std::optional<checkpoint::CheckpointPlace> find_whole(const std::string& root, comm::Group& world) {
  std::string names;
  if (world.rank() == 0)
    for (const checkpoint::CheckpointPlace& place : checkpoint::newest_first(root)) names += join_text(place.step, " ", place.path, "\n");
  std::vector<checkpoint::CheckpointPlace> places;
  std::istringstream lines(comm::text_of_first(world, names));
  for (std::string line; std::getline(lines, line);) places.push_back({std::stoll(line), line.substr(line.find(' ') + 1)});
  return checkpoint::first_whole(root, places, [&](const checkpoint::CheckpointPlace& place) {
    std::string fault;
    for (const std::string& each : comm::texts_of_all(world, checkpoint::readable_fault(place.path, {world.rank(), world.size()})))
      if (fault.empty()) fault = each;
    if (!fault.empty() && world.rank() == 0) log::warning(place.path, ": passed over, ", fault);
    return fault;
  });
}

// What is there for a resume.
std::string newest_of(const std::string& root) {
  try {
    const std::vector<checkpoint::CheckpointPlace> places = checkpoint::newest_first(root);
    return places.empty() ? "no earlier one is there" : join_text("that of step ", places.front().step, " is there");
  } catch (const UserError& e) {
    return e.what();
  }
}

// The actor's files lie at the top of a checkpoint.
std::string folder_of(const std::string& checkpoint, const policy::TrainedRole& role) {
  return role.folder().empty() ? checkpoint : checkpoint + "/" + role.folder();
}

void write_into(const std::string& tmp, const policy::TrainedRole& role, const policy::FileWriter& write, Sums& sums) {
  for (const auto& [name, sum] : write(folder_of(tmp, role))) sums[role.folder().empty() ? name : role.folder() + "/" + name] = sum;
}

}  // namespace

nlohmann::json to_json(const serve::EvalSummary& s) {
  json out = {{"accuracy", s.accuracy}, {"mean_score", s.mean_score}, {"pass_at_k", s.pass_at_k}, {"num_problems", s.num_problems}};
  for (const serve::NamedSummary& named : s.sets) out["sets"][named.name] = to_json(named.summary);
  return out;
}

StateFiles::StateFiles(const policy::RunParts& parts, const std::string& run_dir, std::string model_dir)
    : parts_(parts),
      root_(run_dir + "/checkpoint"),
      exporter_(parts.config, parts.ranks, std::move(model_dir)),
      writer_(root_, parts.config.checkpoint.keep_last),
      writers_(parts.ranks.world.size() > 1 ? parts.ranks.world.split(0, "checkpoint") : comm::single()) {
  writers_->carry_by(nullptr);  // they move no tensor of a device
}

void StateFiles::load_start(policy::TrainedRole& actor) {
  actor.load(exporter_.model_dir());
  start_ = {exporter_.model_dir(), actor.checksum()};
}

std::string StateFiles::state_text(const RunState& state, TrainedRoles roles) const {
  json j = to_json(state, start_);
  j["train_layout"] = model::to_string(parts_.ranks.train_layout);
  j["products"] = parts_.compute.products();
  j["correction"] = parts_.config.algo.correction;
  for (const policy::TrainedRole* role : roles) {
    json& of_role = role->folder().empty() ? j : j[role->folder()];
    of_role["optimizer_steps"] = role->trainer().optimizer().num_steps();
  }
  return j.dump(1);
}

// Makes the folders of an attempt, and in it what samples.sqlite did not take. Returns what writes the other small files. Collective.
policy::FileWriter StateFiles::begin(const RunState& state, TrainedRoles roles, const SaveSamples& save_samples) {
  policy::FileWriter writer = [](const std::string&) { return Sums(); };
  comm::run_alike(parts_.ranks.world, [&] {
    if (!parts_.ranks.is_first()) return;
    const std::string tmp = writer_.begin(state.step);
    for (const policy::TrainedRole* role : roles) std::filesystem::create_directories(folder_of(tmp, *role));
    if (save_samples) save_samples(tmp + "/" + kUnwritten);
    const std::string queue(reinterpret_cast<const char*>(state.queue.data()), state.queue.size());
    writer = [text = state_text(state, roles), queue](const std::string& dir) {
      Sums sums;
      if (std::filesystem::exists(dir + "/" + kUnwritten)) sums = checkpoint::sums_of(dir, std::vector<std::string>{kUnwritten});
      sums["state.json"] = write_durable(dir + "/state.json", text);
      sums["queue.bin"] = write_durable(dir + "/queue.bin", queue);
      return sums;
    };
  });
  return writer;
}

// With the checksums of what each rank has written. Collective.
void StateFiles::commit(comm::Group& group, int64_t step, const Sums& mine) {
  const Sums sums = joined(group, mine);
  std::exception_ptr fault;
  try {
    if (parts_.ranks.is_first()) writer_.commit(step, sums);
  } catch (...) {
    fault = std::current_exception();
  }
  if (&group != &parts_.ranks.world) comm::meet(group);  // a disk may take its time, and nobody else waits
  comm::run_alike(group, [&] {
    if (fault) std::rethrow_exception(fault);
  });
}

policy::FileWriter StateFiles::optimizer_writer(const policy::TrainedRole& role, device::Arena* host) const {
  return policy::optimizer_writer(parts_.ranks.train_rank(), role.trainer().optimizer().state(), host);
}

void StateFiles::abandon(int64_t step, const std::exception& why) {
  if (parts_.ranks.is_first()) writer_.abandon(step);
  throw PeerError(join_text("checkpoint of step ", step, ": ", why.what(), " (", newest_of(root_), ")"));
}

void StateFiles::save(const RunState& state, TrainedRoles roles, const SaveSamples& save_samples) {
  (void)settle();
  const std::string tmp = writer_.tmp_path(state.step);
  try {
    const policy::FileWriter small = begin(state, roles, save_samples);
    Sums sums;
    comm::run_alike(parts_.ranks.world, [&] {
      sums = small(tmp);
      for (const policy::TrainedRole* role : roles)
        if (role->is_here()) write_into(tmp, *role, optimizer_writer(*role), sums);
    });
    for (policy::TrainedRole* role : roles)
      write_into(tmp, *role, [&](const std::string& dir) { return exporter_.write(dir, *role, parts_.ranks.world); }, sums);
    commit(parts_.ranks.world, state.step, sums);
  } catch (const std::exception& e) {
    abandon(state.step, e);
  }
  last_saved_step_ = state.step;
}

// Whether each machine has memory for the copies of its ranks. Collective.
bool StateFiles::has_room(TrainedRoles roles) {
  policy::Memory& memory = parts_.memory;
  comm::Group& world = parts_.ranks.world;
  int64_t copies = 0;
  for (const policy::TrainedRole* role : roles) {
    if (role->is_here()) copies += policy::optimizer_copy_bytes(role->trainer().optimizer().state());
    if (parts_.ranks.is_first()) copies += exporter_.copy_bytes(*role);
  }
  const std::vector<int64_t> wanted = comm::values_of_all(world, std::vector<int64_t>{copies});
  int64_t here = 0;
  for (int rank = 0; rank < world.size(); ++rank)
    if (world.machine(rank) == world.machine(world.rank())) here += wanted[static_cast<size_t>(rank)];
  const device::MemoryLimit limit = device::memory_limit();
  std::string lacks;
  if (here > limit.bytes) lacks = join_text(bytes_text(limit.bytes), " ", limit.from);
  else if (const auto left = memory.host.left_bytes(); left && copies > *left)
    lacks = join_text(bytes_text(*left), " left of memory.host_mib");
  if (!lacks.empty()) lacks = join_text(bytes_text(here), " for copies, and there are ", lacks);
  const std::vector<std::string> all = comm::texts_of_all(world, lacks);
  const auto first = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (first == all.end()) return true;
  if (parts_.ranks.is_first() && !std::exchange(told_of_room_, true))
    log::warning("the run waits while its checkpoints are written: to write them behind it takes ", *first);
  return false;
}

void StateFiles::save_behind(const RunState& state, TrainedRoles roles, const SaveSamples& save_samples) {
  (void)wait();
  const bool copies = !parts_.memory.device.device().is_cpu();
  if (copies && !has_room(roles)) return save(state, roles, save_samples);
  const std::string tmp = writer_.tmp_path(state.step);
  device::Arena* host = copies ? &parts_.memory.host : nullptr;
  policy::FileWriter small;
  std::vector<std::pair<const policy::TrainedRole*, policy::FileWriter>> files;
  std::vector<const policy::TrainedRole*> gathered;  // when they are written
  try {
    small = begin(state, roles, save_samples);
    comm::run_alike(parts_.ranks.world, [&] {
      for (const policy::TrainedRole* role : roles)
        if (role->is_here()) files.emplace_back(role, optimizer_writer(*role, host));
    });
    for (const policy::TrainedRole* role : roles)
      if (copies) files.emplace_back(role, exporter_.copy(*role, *host));
      else gathered.push_back(role);
  } catch (const std::exception& e) {
    abandon(state.step, e);
  }
  is_failing_ = false;
  std::promise<void> has_read;
  if (!copies) reading_ = has_read.get_future();
  for (policy::TrainedRole* role : roles)
    if (role->is_here()) role->trainer().before_update([this] { let_go(); });
  writing_ = std::async(std::launch::async, [this, step = state.step, tmp, small, files = std::move(files), gathered,
                                             has_read = std::move(has_read)]() mutable {
    const double begin_s = now_s();
    device::name_thread("checkpoint");
    device::step_back();
    const device::ThreadLimit one_thread(1);
    Sums sums;
    std::exception_ptr fault;
    const auto write_mine = [&] {
      sums = small(tmp);
      for (auto& [role, write] : files) write_into(tmp, *role, std::exchange(write, {}), sums);
    };
    const auto write_all = [&] {
      try {
        write_mine();
      } catch (...) {
        fault = std::current_exception();
        is_failing_ = true;
      }
      comm::meet(*writers_);
      comm::run_alike(*writers_, [&] {
        if (fault) std::rethrow_exception(fault);
      });
      for (const policy::TrainedRole* role : gathered)
        write_into(tmp, *role, [&](const std::string& dir) { return exporter_.write(dir, *role, *writers_); }, sums);
    };
    try {
      write_all();
    } catch (...) {
      fault = std::current_exception();
    }
    has_read.set_value();
    try {
      if (fault) std::rethrow_exception(fault);
      commit(*writers_, step, sums);
    } catch (const std::exception& e) {
      abandon(step, e);
    }
    return Written{step, begin_s, now_s()};
  });
}

void StateFiles::let_go() {
  if (!reading_.valid()) return;
  const double begin_s = now_s();
  reading_.get();
  parts_.recorder.add("time/checkpoint_s", now_s() - begin_s);
}

std::optional<Written> StateFiles::look() {
  if (!writing_.valid()) return std::nullopt;
  const bool is_over = is_failing_ || writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return comm::any_of(parts_.ranks.world, is_over) ? wait() : std::nullopt;
}

std::optional<Written> StateFiles::wait() {
  if (!writing_.valid()) return std::nullopt;
  const Written written = writing_.get();
  last_saved_step_ = written.step;
  return written;
}

StateFiles::~StateFiles() {
  try {
    (void)wait();
  } catch (const std::exception& e) {
    if (parts_.ranks.is_first()) log::warning(e.what());
  }
}

std::optional<Written> StateFiles::settle() {
  try {
    return wait();
  } catch (const PeerError& e) {
    if (parts_.ranks.is_first()) log::warning(e.what(), "; the last step is saved instead");
    return std::nullopt;
  }
}

void StateFiles::check_start(const StartModel& before, const std::string& where) const {
  if (before.checksum == start_.checksum) return;
  const bool same_path = before.path == start_.path;
  throw UserError(where, join_text("goes on from the weights of ", before.path, " (checksum ", before.checksum, "), and ",
                                   same_path ? "they have changed since" : start_.path + " has others", " (", start_.checksum, ")"),
                  join_text(same_path ? "the weights as they were" : "--model " + before.path,
                            ", or another --run-dir: adapters and a reference belong to one start"));
}

std::optional<RunState> StateFiles::load(TrainedRoles roles, const Resume& resume) {
  const auto found = find_whole(root_, parts_.ranks.world);
  if (!found) return std::nullopt;
  const std::string& dir = found->path;
  const std::string file = dir + "/state.json";
  const json j = read_state(file);
  RunState state;
  model::Layout saved_under;
  std::vector<int64_t> optimizer_steps;
  try {
    saved_under = model::parse_layout(j.at("train_layout"), file);
    for (const policy::TrainedRole* role : roles) {
      if (!role->folder().empty() && !j.contains(role->folder()))
        throw UserError(file, "has no " + role->name() + ": the run was begun without one",
                        "the algorithm it was begun with, or another --run-dir");
      const json& of_role = role->folder().empty() ? j : j.at(role->folder());
      optimizer_steps.push_back(of_role.at("optimizer_steps"));
    }
    if (j.contains("products")) parts_.compute.adopt(j["products"].get<model::Products>());
    if (resume.needs_start || j.contains("start")) {
      const StartModel before{j.at("start").at("path").get<std::string>(), j.at("start").at("checksum").get<std::string>()};
      if (resume.needs_start) check_start(before, dir);
      start_ = before;  // what the weights began as, whatever directory this resume was given
    }
    state = from_json(j);
  } catch (const json::exception& e) {
    throw UserError(file, std::string("is not as this version writes it: ") + e.what(), "the version of Tandem that wrote it");
  }
  check_numbers(state, found->step, file);
  state.unwritten_samples = dir + "/" + kUnwritten;
  const std::string queue = read_file(dir + "/queue.bin", INT64_MAX);  // as large as the groups that are finished
  const auto bytes = std::as_bytes(std::span(queue));
  state.queue.assign(bytes.begin(), bytes.end());
  for (size_t i = 0; i < roles.size(); ++i) {
    policy::TrainedRole& role = *roles[i];
    const std::string folder = folder_of(dir, role);
    if (resume.bring) resume.bring(role);
    if (!role.lora()) role.load(folder + "/hf");  // else it holds the weights of the start, and adapters go on them
    if (!role.is_here()) continue;
    policy::OptimizerFiles files(folder, saved_under.world(), parts_.ranks.train_rank());
    role.trainer().restore(optimizer_steps[i], [&](const auto& name, const auto& piece, const at::Tensor& to) {
                           files.read(name, piece, to); });
    role.trainer().share_values();
  }
  if (parts_.ranks.is_first() && saved_under != parts_.ranks.train_layout)
    log::info("saved under ", model::to_string(saved_under), ", goes on under ", model::to_string(parts_.ranks.train_layout));
  last_saved_step_ = state.step;
  if (parts_.ranks.is_first()) writer_.goes_on_from(*found);
  return state;
}

model::Products products_of_run(const std::string& run_dir, comm::Group& world) {
  std::string text;
  if (const auto found = find_whole(run_dir + "/checkpoint", world); found && world.rank() == 0)
    if (const json state = read_state(found->path + "/state.json"); state.contains("products")) text = state["products"].dump();
  text = comm::text_of_first(world, text);
  return text.empty() ? model::Products{} : json::parse(text).get<model::Products>();
}

// Without a look at the other files of a checkpoint, which load() reads and says what is wrong with.
std::string correction_of_run(const std::string& run_dir, comm::Group& world) {
  std::string word;
  try {
    if (world.rank() == 0)
      for (const checkpoint::CheckpointPlace& place : checkpoint::newest_first(run_dir + "/checkpoint"))
        if (word = read_state(place.path + "/state.json").value("correction", kNotSaid); !word.empty()) break;
  } catch (const UserError&) {
    word.clear();
  }
  return comm::text_of_first(world, word);
}

}  // namespace tandem::runtime
