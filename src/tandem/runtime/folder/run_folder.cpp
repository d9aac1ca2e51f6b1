// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/checkpoint/durable_file.h"
#include "tandem/monitor/jsonl_sink.h"
#include "tandem/monitor/tensorboard_sink.h"
#include "tandem/monitor/trace_sink.h"

namespace tandem::runtime {
namespace fs = std::filesystem;

namespace {

// A run, or what is left of one that was killed before it had written its recipe.
bool holds_run(const std::string& dir) {
  if (fs::exists(dir + "/config.yaml")) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir))
    if (!entry.path().filename().string().starts_with(".") && !entry.path().filename().string().starts_with("config.yaml")) return false;
  return true;
}

int lock_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) throw UserError(path, std::string("cannot be opened: ") + std::strerror(errno), "a writable --run-dir");
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  ::close(file);
  throw UserError(path, "another process runs in this folder", "its end, or another --run-dir");
}

bool decides_samples(const std::string& name) {
  static const std::set<std::string> paths = {"data.train", "data.eval"};  // files may have moved
  if (name.starts_with("data.")) return !paths.contains(name);
  if (name.starts_with("model.lora_") || name.starts_with("model.init_")) return true;
  return name == "run.seed" || name == "model.dtype" || name == "schedule.group_size";
}

}  // namespace

void claim_folder(const std::string& dir, bool resume) {
  std::error_code fault;
  const bool exists = fs::exists(dir, fault) && !(fs::is_directory(dir, fault) && fs::is_empty(dir, fault));
  if (exists && !resume) throw UserError(dir, "the run folder exists", "--resume to continue it, or another --run-dir");
  if (exists && !holds_run(dir))
    throw UserError(dir, "is not the folder of a run: it has no config.yaml", "the --run-dir of the run to resume");
  if (!exists && resume) log::warning(dir, ": no run to resume there yet, so it starts");
  fs::create_directories(dir, fault);
  if (fault) throw UserError(dir, "the run folder cannot be made: " + fault.message(), "a writable --run-dir");
  try {
    checkpoint::write_durable(dir + "/.writable", "");
    fs::remove(dir + "/.writable", fault);
  } catch (const PeerError& e) {
    throw UserError(dir, std::string("the run folder cannot be written: ") + e.what(), "a writable --run-dir");
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

RunFolder::RunFolder(const std::string& dir, const config::RunConfig& config, bool resume)
    : dir_(dir), config_yaml_(config::to_yaml(config)) {
  std::error_code absent;
  made_ = !fs::exists(path("config.yaml"), absent);
  claim_folder(dir, resume);
  lock_ = lock_file(path(".lock"));
  if (fs::exists(path("config.yaml"))) check_same_run(config::load_config(path("config.yaml"), {}), config, dir);
  else checkpoint::write_durable(path("config.yaml"), config_yaml_);
  log::also_to_file(path("log.txt"));
}

RunFolder::~RunFolder() {
  if (made_ && !samples_) remove_unused();
  ::close(lock_);
}

// A run refused before it began leaves no folder in the way of the corrected command.
void RunFolder::remove_unused() const {
  static const std::set<std::string> ours = {"config.yaml", "log.txt", ".lock", "init"};
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_, ignored))
    if (!ours.contains(entry.path().filename().string())) return;
  log::stop_file();
  fs::remove_all(dir_, ignored);
}

void RunFolder::open_sinks(monitor::Recorder& recorder, const std::map<std::string, int64_t>& sink_bytes, int64_t step) {
  checkpoint::write_durable(path("config.yaml"), config_yaml_);
  std::error_code absent;
  fs::remove(path("summary.json"), absent);  // of an earlier end; the run goes on
  // Without a checkpoint the run starts over, and so do its files.
  const auto at = [&](const char* name) -> monitor::ResumeAt {
    const auto it = sink_bytes.find(name);
    return it == sink_bytes.end() ? monitor::ResumeAt() : monitor::ResumeAt(it->second);
  };
  if (sink_bytes.empty()) {
    std::error_code ignored;
    fs::remove(path("metrics.jsonl"), ignored);
    fs::remove(path("trace.json"), ignored);
    fs::remove_all(path("tensorboard"), ignored);
    for (const char* name : {"samples.sqlite", "samples.sqlite-wal", "samples.sqlite-shm"}) fs::remove(path(name), ignored);
  }
  recorder.add_sink(std::make_unique<monitor::JsonlSink>(path("metrics.jsonl"), at("metrics")));
  recorder.add_sink(std::make_unique<monitor::TensorBoardSink>(path("tensorboard"), at("tensorboard")));
  recorder.add_sink(std::make_unique<monitor::TraceSink>(path("trace.json"), at("trace")));
  samples_ = std::make_unique<data::SampleStore>(path("samples.sqlite"));
  samples_->truncate_after(data::StepId{step});
}

void RunFolder::write_summary(const RunSummary& s) {
  const auto eval = [](const std::optional<serve::EvalSummary>& e) {
    if (!e) return nlohmann::json();
    return nlohmann::json{
        {"accuracy", e->accuracy}, {"mean_score", e->mean_score}, {"pass_at_k", e->pass_at_k}, {"num_problems", e->num_problems}};
  };
  const nlohmann::json out = {{"eval_before", eval(s.before)}, {"eval_after", eval(s.after)}, {"steps", s.steps},
                              {"seconds", s.seconds},         {"tokens", s.tokens}};
  checkpoint::write_durable(path("summary.json"), out.dump(1) + "\n");
}

}  // namespace tandem::runtime
