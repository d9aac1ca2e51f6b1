// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/run_folder.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/base/file/checksum.h"
#include "tandem/base/file/durable_file.h"
#include "tandem/checkpoint/lock_file.h"
#include "tandem/data/decisions.h"
#include "tandem/data/sample_store.h"
#include "tandem/monitor/jsonl_sink.h"
#include "tandem/monitor/tensorboard_sink.h"
#include "tandem/monitor/timeline_sink.h"
#include "tandem/monitor/trace_sink.h"
#include "tandem/reward/rule.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {
namespace fs = std::filesystem;

namespace {

constexpr const char* kAside = "aside_";
constexpr const char* kInputs = "inputs.txt";  // what the run reads, by its content
constexpr int64_t kMostInputBytes = int64_t{16} << 20;

// A run, or what is left of one that was killed before it had written its recipe.
bool holds_run(const std::string& dir) {
  if (fs::exists(dir + "/config.yaml")) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".") && !name.starts_with("config.yaml") && !name.starts_with(kAside)) return false;
  }
  return true;
}

bool decides_samples(const std::string& name) {
  static const std::set<std::string> paths = {"data.train", "data.eval"};  // files may have moved
  if (name.starts_with("data.")) return !paths.contains(name);
  if (name.starts_with("model.lora_") || name.starts_with("model.init_")) return true;
  return name == "run.seed" || name == "model.dtype" || name == "schedule.group_size";
}

const std::vector<std::string> kSampleFiles = {"samples.sqlite", "samples.sqlite-wal", "samples.sqlite-shm", "samples.sqlite-journal"};
// What a run has before its first step, and all else that it writes but .lock.
const std::vector<std::string> kFirstFiles = {"config.yaml", "log.txt", "init"};
const std::vector<std::string> kLaterFiles = {kInputs,       "metrics.jsonl", "trace.json", "timeline.jsonl", "decisions.jsonl",
                                              "tensorboard", "summary.json",  "checkpoint", "warm_start",     "hf",
                                              "adapter"};
// Of workers (worker/door.h). Keys, address and number of starts stay: workers of the run before, which look for it, must not be taken for
// those of the next.
const std::vector<std::string> kWorkerFiles = {"workers", "controller.jsonl", "controller.jsonl.old"};
// Of monitor.sinks: where each stands, what their packages say, what they keep here.
const std::vector<std::string> kSinkFiles = {"sinks.json", "sinks.log", "wandb", "swanlog", "mlruns"};

std::vector<std::string> all_run_files() {
  std::vector<std::string> names = kFirstFiles;
  for (const auto* more : {&kLaterFiles, &kWorkerFiles, &kSampleFiles, &kSinkFiles}) names.insert(names.end(), more->begin(), more->end());
  return names;
}

// Where in the folder of a run a path leads, as the first name below it; "." for the folder itself, "" for a path outside.
std::string name_in_folder(const std::string& path, const std::string& dir) {
  std::error_code failed;
  if (path.empty() || !fs::exists(path, failed)) return "";
  const fs::path inside = fs::weakly_canonical(path, failed).lexically_relative(fs::weakly_canonical(dir, failed));
  return failed || inside.empty() || *inside.begin() == ".." ? "" : inside.begin()->string();
}
constexpr double kPatienceS = 30;  // to look at every page of a store

constexpr std::string_view kFunction = "function ";

/// file_digest of files, each read once.
class Digests {
 public:
  const std::string& of(const std::string& path) {
    const auto [found, is_new] = known_.try_emplace(path);
    if (is_new) found->second = file_digest(path);
    return found->second;
  }

 private:
  std::map<std::string, std::string> known_;
};

std::string inputs_of(const config::RunConfig& config, std::span<const HostFunction> functions, Digests& digests) {
  std::vector<std::string> files = config::data_files(config);
  std::string lines;
  for (const HostFunction& function : functions) {
    lines += join_text(kFunction, function.option, " `", function.name, "`", function.file.empty() ? "" : " of ", function.file, '\n');
    std::error_code failed;
    if (fs::is_regular_file(function.file, failed)) files.push_back(function.file);
  }
  for (const std::string& file : files) lines += digests.of(file) + '\n';
  return lines;
}

// {BYTES CHECKSUM: name} of the files in inputs_of, {function OPTION: name} of the functions.
std::map<std::string, std::string> contents_of(const std::string& inputs) {
  std::map<std::string, std::string> contents;
  std::istringstream lines(inputs);
  for (std::string line, bytes, checksum, name; std::getline(lines, line);) {
    std::istringstream words(line);
    if (words >> bytes >> checksum && std::getline(words >> std::ws, name)) contents[bytes + " " + checksum] = name;
  }
  return contents;
}

// Says which files are none of those of the last start, and which functions have another name. Where files lie and what they are called
// does not count.
void compare_inputs(const std::string& before, const std::string& now) {
  const std::map<std::string, std::string> known = contents_of(before), given = contents_of(now);
  const auto had = [&](const std::string& name) {
    return std::ranges::any_of(known, [&](const auto& file) { return !file.first.starts_with(kFunction) && file.second == name; });
  };
  for (const auto& [content, name] : given)
    if (!known.contains(content) && !content.starts_with(kFunction))
      log::warning("resume: ", name, had(name) ? " is another than" : " was not read",
                   " at the last start of this run; it counts from here on");
  for (const char* option : {"reward", "advantage", "loss"}) {
    const auto named = [&](const std::map<std::string, std::string>& inputs) {
      const auto found = inputs.find(std::string(kFunction) + option);
      return found == inputs.end() ? "that of the recipe" : "the function " + found->second;
    };
    if (named(known) != named(given))
      log::warning("resume: the ", option, " was ", named(known), " and is now ", named(given), "; it counts from here on");
  }
}

// Of the rewards' options those that no grade depends on; `python` counts by what its file holds.
const std::set<std::string> kNoGrade = {"reward.on_error",       "reward.scale",          "reward.clip_low",          "reward.clip_high",
                                        "reward.workers",        "reward.python",         "reward.python_executable", "reward.timeout_s",
                                        "reward.python_retries", "reward.http_retries",   "reward.python_memory_mib", "reward.url"};

std::string eval_digest_of(const config::RunConfig& config, std::span<const HostFunction> functions, Digests& digests) {
  const auto content = [&](const std::string& file) {
    const std::string& digest = digests.of(file);
    return digest.starts_with("absent") ? file : digest.substr(0, digest.find(' ', digest.find(' ') + 1));
  };
  std::string text;
  for (const data::EvalSet& set : data::eval_sets(config.data)) text += join_text(set.name, ' ', content(set.path), '\n');
  for (const std::string& file : reward::python_files(config.reward)) text += content(file) + '\n';
  text += config.reward.python.substr(config.reward.python.rfind(':') + 1) + '\n';
  for (const HostFunction& function : functions)
    if (function.option == "reward") text += join_text(function.name, ' ', content(function.file), '\n');
  config::RunConfig copy = config;
  OptionList list;
  describe(list, copy);
  for (const OptionEntry& entry : list.entries)
    if ((entry.path.starts_with("reward.") && !kNoGrade.contains(entry.path)) || entry.path == "eval.right_at" || entry.path == "eval.n")
      text += join_text(entry.path, ' ', option_text(entry.ref.value), '\n');
  Checksum sum;
  sum.update(std::as_bytes(std::span(text)));
  return std::to_string(sum.value());
}

// {section: {option: value}}. Of numbers that JSON does not have, the text.
nlohmann::json recipe_json(const config::RunConfig& config) {
  config::RunConfig copy = config;
  OptionList list;
  describe(list, copy);
  nlohmann::json recipe;
  for (const OptionEntry& entry : list.entries) {
    const size_t dot = entry.path.find('.');
    nlohmann::json& value = recipe[entry.path.substr(0, dot)][entry.path.substr(dot + 1)];
    std::visit([&](const auto* v) { value = *v; }, entry.ref.value);
    if (value.is_number_float() && !std::isfinite(value.get<double>())) value = option_text(entry.ref.value);
  }
  return recipe;
}

// A link to a disk that is not there, or not yet. Errors: UserError if its target cannot be made.
void check_checkpoint_link(const std::string& link) {
  std::error_code failed;
  if (!fs::is_symlink(link, failed) || fs::exists(link, failed)) return;
  const fs::path target = fs::path(link).parent_path() / fs::read_symlink(link, failed);
  fs::create_directories(target, failed);
  if (failed)
    throw UserError(link, "is a link to " + target.string() + ", which does not exist and cannot be made: " + failed.message(),
                    "the disk mounted, or the link removed");
  log::warning(link, ": was a link to nothing; ", target.string(), " is made, and is empty");
}

}  // namespace

void check_put_aside(const config::RunConfig& config, const std::string& replay, const std::string& replay_decisions) {
  const std::vector<std::string> moved = all_run_files();
  const auto check = [&](const std::string& option, const std::string& path) {
    const std::string name = name_in_folder(path, config.run.dir);
    if (name == "." || std::ranges::find(moved, name) != moved.end())
      throw UserError(option, path + " lies in the run folder, and --overwrite would put it aside", "another --run-dir");
  };
  check("--replay", replay);
  check("--replay-decisions", replay_decisions);
  config::RunConfig copy = config;
  OptionList list;
  describe(list, copy);
  for (const OptionEntry& entry : list.entries) {
    std::vector<std::string> texts;
    if (auto* text = std::get_if<std::string*>(&entry.ref.value)) texts = {**text};
    if (auto* items = std::get_if<std::vector<std::string>*>(&entry.ref.value)) texts = **items;
    if (entry.path == "run.dir") continue;
    for (const std::string& text : texts)  // a path, FILE:FUNCTION, FILE=WEIGHT or NAME=FILE
      for (const std::string& path :
           {text, text.substr(0, text.rfind(':')), text.substr(0, text.rfind('=')), text.substr(text.find('=') + 1)})
        check(entry.path, path);
  }
}

void claim_folder(const std::string& dir, EarlierRun earlier) {
  std::error_code fault;
  const bool resume = earlier == EarlierRun::kResume;
  const bool exists = fs::exists(dir, fault) && !(fs::is_directory(dir, fault) && fs::is_empty(dir, fault));
  if (exists && !fs::is_directory(dir, fault)) throw UserError(dir, "is no folder", "another --run-dir");
  if (exists && earlier == EarlierRun::kRefuse && fs::exists(dir + "/.lock", fault))
    checkpoint::LockFile(dir + "/.lock");  // its run is over
  if (exists && earlier == EarlierRun::kRefuse)
    throw UserError(dir, holds_run(dir) ? "the run folder exists" : "is there, and is not the folder of a run",
                    holds_run(dir) ? "--resume to continue it, --overwrite to begin anew, or another --run-dir" : "another --run-dir");
  if (exists && !holds_run(dir))
    throw UserError(dir, "is not the folder of a run: it has no config.yaml",
                    resume ? "give the --run-dir of the run to resume" : "--overwrite puts aside runs alone; give another --run-dir");
  if (exists && earlier == EarlierRun::kPutAside && !fs::exists(dir + "/.lock", fault))
    throw UserError(dir, "is not the folder of a run: no run had its .lock", "--overwrite puts aside runs alone; give another --run-dir");
  if (exists && earlier == EarlierRun::kPutAside && fs::is_symlink(dir + "/checkpoint", fault))
    throw UserError(dir + "/checkpoint", "is a link, and --overwrite would leave the new run without it",
                    "the link and the checkpoints behind it moved away, or another --run-dir");
  if (!exists && resume) log::warning(dir, ": no run to resume there yet, so it starts");
  fs::create_directories(dir, fault);
  if (fault) throw UserError(dir, "the run folder cannot be made: " + fault.message(), "choose a writable --run-dir");
  try {
    write_durable(dir + "/.writable", "");
    fs::remove(dir + "/.writable", fault);
  } catch (const PeerError& e) {
    throw UserError(dir, std::string("the run folder cannot be written: ") + e.what(), "choose a writable --run-dir");
  }
}

void check_same_run(const config::RunConfig& before, const config::RunConfig& now, const std::string& where) {
  config::RunConfig a = before, b = now;
  OptionList old_list, new_list;
  describe(old_list, a);
  describe(new_list, b);
  for (size_t i = 0; i < new_list.entries.size(); ++i) {
    const std::string& name = new_list.entries[i].path;
    const std::string was = option_text(old_list.entries[i].ref.value), is = option_text(new_list.entries[i].ref.value);
    if (was == is || name == "run.dir") continue;
    if (decides_samples(name))
      throw UserError("--resume " + where, join_text(name, " was ", was, " and is now ", is),
                      join_text(name, " ", was, ", or another --run-dir: the prompts and samples of the run would not be the same"));
    log::info("resume: ", name, " was ", was, " and is now ", is);
  }
}

void check_follows(const config::RunConfig& config, const std::string& run_dir, const data::DecisionReader& decisions) {
  const std::string where = "--replay-decisions " + run_dir;
  if (!config.is_free())
    throw UserError(where, "is for a run under schedule.mode free",
                    "the staleness and the placement of that run; under --parity also --set schedule.mode=free");
  const int64_t num_steps = decisions.num_steps();
  if (num_steps == 0)
    throw UserError(where, "has no decision of a step: the run was stopped before one, or it resumed as a free one",
                    "a run that is free from step 1 to where it ends, or is resumed first");
  if (config.run.steps > num_steps)
    throw UserError(where, join_text("has the decisions of ", num_steps, " steps up to its end or its first resume, run.steps is ",
                                     config.run.steps),
                    join_text("--steps ", num_steps, " at most"));
  config::RunConfig before = config::load_config(run_dir + "/config.yaml", {}), now = config;
  OptionList old_list, new_list;
  describe(old_list, before);
  describe(new_list, now);
  for (size_t i = 0; i < new_list.entries.size(); ++i) {
    const std::string& name = new_list.entries[i].path;
    static const std::set<std::string> kFree = {"run", "monitor", "checkpoint", "parallel"};
    static const std::set<std::string> kAlike = {"run.seed",           "run.parity",           "parallel.placement",
                                                 "parallel.train_layout", "parallel.rollout_layout"};
    if (kFree.contains(name.substr(0, name.find('.'))) && !kAlike.contains(name)) continue;
    if (name == "schedule.mode" || name == "train.lr_steps") continue;  // what they come to is checked apart
    const std::string was = option_text(old_list.entries[i].ref.value), is = option_text(new_list.entries[i].ref.value);
    if (name.ends_with(".products") && (was.empty() || is.empty())) continue;  // it takes what that run measured
    if (was != is) throw UserError(where, join_text(name, " was ", was, " and is now ", is), join_text(name, " ", was));
  }
  const bool is_constant = config.train.lr_schedule == "constant" && config.critic.train.lr_schedule == "constant";
  const int64_t lr_steps = train::lr_steps_of(config.train, 0, config.run.steps);
  if (!is_constant && lr_steps != decisions.lr_steps())
    throw UserError(where, join_text("the learning rate went over ", decisions.lr_steps(), " steps, and goes over ", lr_steps),
                    join_text("--set train.lr_steps=", decisions.lr_steps()));
  for (int64_t step = 1; step <= config.run.steps; ++step)
    if (const auto found = std::ssize(decisions.of(data::StepId{step}).groups); found != now.schedule.queue.groups_per_step)
      throw UserError(where, join_text("step ", step, " has ", found, " groups"), "the file as the run wrote it");
}

// The other constructor calls this one first: what it refuses later, the destructor cleans up.
RunFolder::RunFolder(const std::string& dir, const config::RunConfig& config, EarlierRun earlier, Claimed)
    : dir_(dir), config_yaml_(config::to_yaml(config)), options_(config.run), is_free_(config.is_free()),
      sink_job_{config.monitor, dir, recipe_json(config)} {
  claim_folder(dir, earlier);
  lock_ = checkpoint::LockFile(path(".lock"));
  made_ = !holds("config.yaml");
}

RunFolder::RunFolder(const std::string& dir, const config::RunConfig& config, EarlierRun earlier, std::span<const HostFunction> functions)
    : RunFolder(dir, config, earlier, Claimed()) {
  Digests digests;
  inputs_ = inputs_of(config, functions, digests);
  eval_digest_ = eval_digest_of(config, functions, digests);
  const std::vector<std::string> names = all_run_files();
  const bool is_held = std::ranges::any_of(names, [&](const std::string& name) { return holds(name); });
  if (earlier == EarlierRun::kPutAside && is_held) aside_ = put_aside(names), made_ = true;
  if (holds("config.yaml")) check_same_run(config::load_config(path("config.yaml"), {}), config, dir);
  else write_durable(path("config.yaml"), config_yaml_);
  log::also_to_file(path("log.txt"));
  if (holds(kInputs)) compare_inputs(read_file(path(kInputs), kMostInputBytes), inputs_);
  check_checkpoint_link(path("checkpoint"));
}

bool RunFolder::holds(const std::string& name) const {
  std::error_code absent;
  return fs::exists(path(name), absent);
}

void RunFolder::keep_recipe(const config::RunConfig& config) {
  config_yaml_ = config::to_yaml(config);
  sink_job_.recipe = recipe_json(config);
  write_durable(path("config.yaml"), config_yaml_);
}

RunFolder::~RunFolder() {
  sinks_.reset();
  if (made_ && !samples_ && !put_back()) remove_unused();
}

// A run refused before it began leaves no folder in the way of the corrected command.
void RunFolder::remove_unused() const {
  static const std::set<std::string> ours = {"config.yaml", "log.txt", ".lock", "init", "workers.json", "worker_keys.json", "token"};
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_, ignored))
    if (!ours.contains(entry.path().filename().string())) return;
  log::stop_file();
  fs::remove_all(dir_, ignored);
}

RunFolder::Place RunFolder::place() const {
  if (lock_.is_at(path(".lock"))) return Place::kOurs;
  if (holds(".lock")) return Place::kOfOthers;
  return holds("config.yaml") ? Place::kOurs : Place::kGone;  // with the recipe there, somebody removed the lock alone
}

std::exception_ptr RunFolder::fault() const {
  if (place() != Place::kOurs)
    return std::make_exception_ptr(PeerError(dir_ + ": the run folder was removed or moved while the run wrote there"));
  return samples_ ? samples_->fault() : nullptr;
}

void RunFolder::come_back() {
  const Place now = place();
  if (now == Place::kOfOthers) throw PeerError(dir_ + ": another run has taken the place of the run folder");
  if (now == Place::kOurs) return;
  std::error_code failed;
  fs::create_directories(dir_, failed);
  if (failed) throw PeerError(dir_ + ": cannot be made again: " + failed.message());
  write_durable(path("config.yaml"), config_yaml_);
  write_durable(path(kInputs), inputs_);
}

// A run refused before it began leaves the earlier one as it was. False if there was none, or if this one has begun.
bool RunFolder::put_back() const {
  std::error_code failed;
  const auto is_there = [&](const std::string& name) { return fs::exists(path(name), failed); };
  if (aside_.empty() || std::ranges::any_of(kLaterFiles, is_there)) return false;
  log::stop_file();
  for (const std::string& name : kFirstFiles) fs::remove_all(path(name), failed);
  for (const std::string& name : all_run_files())
    if (fs::exists(aside_ + "/" + name, failed)) fs::rename(aside_ + "/" + name, path(name), failed);
  fs::remove(aside_, failed);  // fails where something is left in it
  log::info(dir_, ": the earlier run is back in its place");
  return true;
}

// Renames within the folder, so that nothing is lost however large it is.
std::string RunFolder::put_aside(const std::vector<std::string>& names) const {
  std::error_code failed;
  int64_t number = 1;
  while (fs::exists(path(join_text(kAside, number)), failed)) ++number;
  const std::string aside = path(join_text(kAside, number));
  fs::create_directory(aside, failed);
  for (const std::string& name : names)
    if (!failed && fs::exists(path(name))) fs::rename(path(name), aside + "/" + name, failed);
  if (failed) throw PeerError(aside + ": what an earlier attempt left cannot be put aside: " + failed.message());
  log::warning(aside, ": holds what an earlier attempt left in the run folder");
  return aside;
}

// Steps or answers of an evaluation, which took time.
bool RunFolder::holds_work() const {
  std::error_code absent;
  const auto bytes = fs::file_size(path("metrics.jsonl"), absent);
  if (!absent && bytes > 0) return true;
  if (!fs::exists(path("samples.sqlite"), absent)) return false;
  try {
    const data::SampleReader reader(path("samples.sqlite"));
    return !reader.steps().empty() || !reader.eval_steps(0).empty();
  } catch (const std::exception&) {
    return true;  // damaged: somebody may want to look
  }
}

void RunFolder::open_samples(const RunState& state) {
  const std::string file = path("samples.sqlite");
  std::error_code absent;
  const bool is_there = fs::exists(file, absent);
  if (!is_there && state.num_samples > 0)
    log::warning(file, ": is missing; the samples of the steps before are lost, and --replay has not all");
  if (const std::string fault = data::sample_store_fault(file, kPatienceS); !fault.empty()) {
    log::warning(file, ": is damaged: ", fault, "; samples go to a new file");
    put_aside(kSampleFiles);
  }
  samples_ = std::make_unique<SampleWriter>(file, options_);
  samples_->truncate_after(data::StepId{state.step});
  samples_->adopt(state.unwritten_samples);
  if (const int64_t found = samples_->num_samples(); is_there && found < state.num_samples)
    log::warning(file, ": has ", found, " samples where the checkpoint counted ", state.num_samples, "; --replay has not all");
}

void RunFolder::open_sinks(monitor::Recorder& recorder, const RunState& state) {
  write_durable(path("config.yaml"), config_yaml_);
  write_durable(path(kInputs), inputs_);
  std::error_code absent;
  fs::remove(path("summary.json"), absent);  // of an earlier end; the run goes on
  if (state.sink_bytes.empty()) {
    std::vector<std::string> names = {"metrics.jsonl", "trace.json", "timeline.jsonl", "decisions.jsonl", "tensorboard"};
    names.insert(names.end(), kSampleFiles.begin(), kSampleFiles.end());
    if (holds_work()) {
      std::vector<std::string> all = names;
      all.insert(all.end(), kSinkFiles.begin(), kSinkFiles.end());  // an attempt that did nothing leaves its place at a sink
      put_aside(all);
    }
    for (const std::string& name : names) fs::remove_all(path(name), absent);
  }
  const auto at = [&](const char* name) -> monitor::ResumeAt {
    const auto it = state.sink_bytes.find(name);
    return it == state.sink_bytes.end() ? monitor::ResumeAt() : monitor::ResumeAt(it->second);
  };
  recorder.add_sink(std::make_unique<monitor::JsonlSink>(path("metrics.jsonl"), at("metrics")));
  recorder.add_sink(std::make_unique<monitor::TensorBoardSink>(path("tensorboard"), at("tensorboard")));
  recorder.add_sink(std::make_unique<monitor::TraceSink>(path("trace.json"), at("trace")));
  recorder.add_sink(std::make_unique<monitor::TimelineSink>(path("timeline.jsonl"), at("timeline")));
  if (is_free_ || holds("decisions.jsonl")) decisions_.emplace(path("decisions.jsonl"), at("decisions"), monitor::whole_lines);
  open_samples(state);
  if (!sink_job_.options.sinks.empty()) sinks_ = std::make_unique<sink::Worker>(sink_job_);
}

void RunFolder::end_sinks(sink::End how) {
  if (sinks_) sinks_->end(how);
}

void RunFolder::write_summary(const RunSummary& s) {
  const auto eval = [](const std::optional<serve::EvalSummary>& e) { return e ? to_json(*e) : nlohmann::json(); };
  const nlohmann::json out = {{"eval_before", eval(s.before)}, {"eval_after", eval(s.after)}, {"steps", s.steps},
                              {"seconds", s.seconds},         {"tokens", s.tokens}};
  write_durable(path("summary.json"), out.dump(1) + "\n");
}

}  // namespace tandem::runtime
